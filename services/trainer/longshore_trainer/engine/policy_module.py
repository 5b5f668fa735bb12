"""The forward pass of the trainer: log-probabilities of the trained tokens, without logits for the others."""

import torch
from torch import Tensor, nn


class PolicyModule(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Wraps a causal language model; computes its head only at the positions that are trained."""

    def __init__(self, model: nn.Module, temperature: float, *, entropy: bool, entropy_gradient: bool, autocast: bool):
        super().__init__()
        self.model = model
        self._temperature = temperature
        self._entropy = entropy
        self._entropy_gradient = entropy_gradient
        self._autocast = autocast

    def forward(self, input_ids_B_T: Tensor, positions_N: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, float32, shape (N,)."""
        causal_lm = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        with torch.autocast(input_ids_B_T.device.type, torch.bfloat16, enabled=self._autocast):
            hidden_B_T_D = causal_lm.get_decoder()(input_ids=input_ids_B_T, use_cache=False).last_hidden_state
            hidden_N_D = hidden_B_T_D.flatten(0, 1).index_select(0, positions_N)
            logits_N_V = causal_lm.get_output_embeddings()(hidden_N_D)
        logits_N_V = logits_N_V.float()
        if self._temperature != 1.0:
            logits_N_V = logits_N_V / self._temperature
        log_p_N_V = torch.log_softmax(logits_N_V, dim=-1)
        logprobs_N = log_p_N_V.gather(-1, targets_N.unsqueeze(-1)).squeeze(-1)
        return logprobs_N, self._entropies(log_p_N_V)

    def _entropies(self, log_p_N_V: Tensor) -> Tensor:
        if not self._entropy:
            return log_p_N_V.new_zeros(log_p_N_V.shape[0])
        if not self._entropy_gradient:
            log_p_N_V = log_p_N_V.detach()
        return -(log_p_N_V.exp() * log_p_N_V).sum(-1)
