"""Several processes on one input: who am I, and waiting for the others."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import timedelta

from protlat.errors import ConfigError, OutputError

log = logging.getLogger(__name__)

_PATIENCE = timedelta(days=30)


@dataclass(frozen=True)
class Ranks:
    """This process among those of a launch.

    Attributes
    ----------
    rank, world_size : int
        0-based number of this process, and how many there are.
    local_rank : int
        Number on this host, which picks the GPU.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> Ranks:
        """Read RANK, WORLD_SIZE and LOCAL_RANK, as `deepspeed` and `torchrun` set them.

        Raises
        ------
        ConfigError
            They are no numbers or do not fit each other.
        """
        try:
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
            rank = int(os.environ.get("RANK", "0")) if world_size > 1 else 0
            local_rank = int(os.environ.get("LOCAL_RANK", "0")) if world_size > 1 else 0
        except ValueError:
            raise ConfigError("RANK, WORLD_SIZE and LOCAL_RANK in the environment must be whole numbers") from None
        if not 0 <= rank < max(world_size, 1):
            raise ConfigError(f"RANK {rank} in the environment does not fit WORLD_SIZE {world_size}")
        return cls(rank, max(world_size, 1), local_rank)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def join(self) -> None:
        """Meet the other processes at MASTER_ADDR:MASTER_PORT; nothing to do when alone.

        Raises
        ------
        ConfigError
            The address is not in the environment.
        """
        if self.world_size == 1:
            return
        import torch.distributed as dist

        if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
            raise ConfigError(
                f"WORLD_SIZE is {self.world_size}, but MASTER_ADDR and MASTER_PORT are not set; start several processes "
                "with: deepspeed --num_gpus N --module protlat.pipelines.embed ..."
            )
        if not dist.is_initialized():
            # Only waiting goes over this group, never vectors: gloo does it everywhere.
            dist.init_process_group("gloo", rank=self.rank, world_size=self.world_size, timeout=_PATIENCE)

    def wait(self, failed: bool = False) -> bool:
        """Wait until every process is here; True when all came without a failure.

        Raises
        ------
        OutputError
            Another process has died.
        """
        if self.world_size == 1:
            return not failed
        import torch
        import torch.distributed as dist

        flag = torch.tensor([int(failed)])
        try:
            dist.all_reduce(flag)
        except RuntimeError as error:
            log.debug("gloo: %s", error)
            raise OutputError(
                f"process {self.rank}: another process of this run has stopped; finished parts are kept: run again with --resume"
            ) from None
        return int(flag.item()) == 0

    def leave(self) -> None:
        """End the meeting."""
        if self.world_size > 1:
            import torch.distributed as dist

            if dist.is_initialized():
                dist.destroy_process_group()
