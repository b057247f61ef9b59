"""The name under which programs import Mooncake Store's class; it is that of nanomc.mooncake."""

from nanomc.mooncake import MooncakeDistributedStore, ReplicateConfig

__all__ = ["MooncakeDistributedStore", "ReplicateConfig"]
