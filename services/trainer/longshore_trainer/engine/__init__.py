"""What holds the model's weights and applies gradients: DeepSpeed, plain torch, LoRA, and the ranks' communication."""
