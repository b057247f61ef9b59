"""nanomc: memory that LLM serving processes share, and what moves through it. docs/python.md says how the classes go together.

    NanoKVCache                     tensors by key
    Store, View, WritePlan          immutable objects by key, in place or as a copy
    Tier                            an SSD below a store
    Client, Replicate               a cluster: objects on many machines
    mooncake                        the same as Mooncake Store's programs call it
    KvCache, KvGroup, KvTable       blocks, sequences, prefixes and block tables of an engine
    Blocks                          an allocator of block numbers
    Ep                              tokens of an MoE layer to their experts and back
    World, Master                   the ranks of one machine and their heaps
    constants, errors               the numbers of nanomc.h without NMC_, and what calls raise
"""

from . import _abi as constants
from . import errors
from ._abi import KvCopy
from ._library import library_path, version
from .blocks import Blocks
from .cache import NanoKVCache, NotReady, ObjMeta, TensorView
from .client import Client, Drained, Location, Replica, Replicate, Segment
from .ep import Ep, ep_bytes_needed, ep_group
from .errors import NanomcError
from .kv import KvCache, KvGroup, KvTable, kv_heap_bytes, kv_page_tokens
from .log import log_to, set_log_callback
from .memory import Array
from .store import Store
from .tier import Staged, Tier
from .views import View, WritePlan
from .world import Master, World

__version__ = constants.VERSION_STRING
__all__ = [
    "Array", "Blocks", "Client", "Drained", "Ep", "KvCache", "KvCopy", "KvGroup", "KvTable", "Location", "Master", "NanoKVCache",
    "NanomcError", "NotReady", "ObjMeta", "Replica", "Replicate", "Segment", "Staged", "Store", "TensorView", "Tier", "View", "World",
    "WritePlan", "constants", "ep_bytes_needed", "ep_group", "errors", "kv_heap_bytes", "kv_page_tokens", "library_path", "log_to",
    "set_log_callback", "version",
]
