"""The name under which older programs import Mooncake Store's class; it is that of nanomc.mooncake."""

from nanomc.mooncake import DistributedObjectStore

#: As the first programs spelled it.
distributed_object_store = DistributedObjectStore

__all__ = ["DistributedObjectStore", "distributed_object_store"]
