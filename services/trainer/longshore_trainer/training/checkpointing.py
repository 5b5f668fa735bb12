"""Writing and reading a checkpoint with all ranks: the order that makes it count only when it is whole."""

from longshore_common.digests import digest, tree_digest
from longshore_trainer.domain.job import Job
from longshore_trainer.engine.base import UpdateEngine
from longshore_trainer.engine.ranks import Ranks
from longshore_trainer.store.checkpoints import CheckpointStore, Manifest


def config_digest(job: Job) -> str:
    """Digest of what must not change between a checkpoint and the job that goes on from it."""
    return digest(
        {
            "kind": job.kind,
            "preset": job.preset,
            "hyperparameters": job.hyperparameters().model_dump(mode="json"),
            "lora": job.lora.model_dump(mode="json") if job.lora else None,
            "seed": job.seed,
            "model": tree_digest(job.model_dir),
        }
    )


def write_checkpoint(
    store: CheckpointStore, engine: UpdateEngine, ranks: Ranks, draft: Manifest, *, with_policy: bool, keep: int
) -> Manifest:
    """Policy folder, state folder, then the manifest; returns it with policy, state and digest filled in (rank 0).

    Raises QuotaExceeded("disk") on a full disk:
    nothing half-written stays, and the manifest before is still good.
    """
    digest_here = engine.weights_digest()
    ranks.check_equal(digest_here, f"weights after step {draft.step}")
    with store.staging(draft.step, owner=ranks.is_main) as staging:
        state = staging / "state"
        if ranks.is_main:
            state.mkdir()
        ranks.barrier()
        engine.save_state(state)
        if with_policy:
            engine.save_policy(staging / "policy")
        ranks.barrier()
        if not ranks.is_main:
            return draft
        policy = store.adopt_policy(staging / "policy", draft.version) if with_policy else None
        manifest = draft.model_copy(
            update={
                "policy": policy,
                "state": store.adopt_state(state, draft.step),
                "weights_digest": digest_here,
            }
        )
        store.commit(manifest)
        store.prune(keep)
        return manifest
