"""Memory that goes in and out: addresses of what the caller passes (bytes, numpy, torch, anything with a buffer), and `Array`, memory
of the library as an array without a copy. An Array keeps its memory: a pin, a cache or a world that it lies in ends after it does.

torch and numpy are used when they are there, and never imported for a caller who does not use them.
"""

from __future__ import annotations

import ctypes
import re
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ._library import address_of, ffi, pointer_to

# name: (bytes, code of DLPack, lanes' bits, letter of numpy or None). Names are those of torch.
_TYPES: Dict[str, Tuple[int, int, Optional[str]]] = {
    "uint8": (1, 1, "u1"),
    "int8": (1, 0, "i1"),
    "bool": (1, 6, "b1"),
    "uint16": (2, 1, "u2"),
    "int16": (2, 0, "i2"),
    "uint32": (4, 1, "u4"),
    "int32": (4, 0, "i4"),
    "uint64": (8, 1, "u8"),
    "int64": (8, 0, "i8"),
    "float16": (2, 2, "f2"),
    "bfloat16": (2, 4, None),
    "float32": (4, 2, "f4"),
    "float64": (8, 2, "f8"),
    "complex32": (4, 5, None),
    "complex64": (8, 5, "c8"),
    "complex128": (16, 5, "c16"),
    "float8_e4m3fn": (1, 10, None),
    "float8_e4m3fnuz": (1, 11, None),
    "float8_e5m2": (1, 12, None),
    "float8_e5m2fnuz": (1, 13, None),
    "float8_e8m0fnu": (1, 14, None),
}

_NAMES: Dict[Any, str] = {}  # of types of torch and numpy that were seen

CPU = 1  # device kinds of DLPack
CUDA = 2


def type_bytes(dtype: str) -> int:
    """Bytes of an element."""
    try:
        return _TYPES[dtype][0]
    except KeyError:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(_TYPES)}") from None


def product(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


# ---- what the caller passes ---------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """Contiguous memory of the caller: where, how much, what keeps it, and whether it is on a GPU."""

    address: int
    nbytes: int
    keep: Any
    cuda: bool

    @property
    def pointer(self) -> Any:
        return pointer_to(self.address)


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def dtype_of(value: Any) -> str:
    """Name of the element type of a tensor or array, as torch spells it."""
    try:
        kind = value.dtype
    except AttributeError:
        raise TypeError(f"a {type(value).__name__} has no elements with a type, as a tensor or an array has") from None
    name = _NAMES.get(kind)
    if name is None:
        name = str(kind).replace("torch.", "")
        if getattr(kind, "byteorder", "=") == ">":
            raise ValueError(f"dtype {kind} has the other byte order; convert it with .astype first")
        type_bytes(name)
        _NAMES[kind] = name
    return name


_STREAMS: Dict[Tuple[int, int], Any] = {}  # torch's, by device and handle: making one costs more than waiting for it


def settle(value: Any) -> None:
    """Waits for what the current stream still does to a CUDA tensor: the library copies on streams of its own."""
    torch = sys.modules["torch"]
    device = value.get_device()
    handle = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    key = (device, handle(device) if handle is not None else -1)
    stream = _STREAMS.get(key)
    if stream is None:
        stream = torch.cuda.current_stream(device)
        if handle is not None and len(_STREAMS) < 1024:
            _STREAMS[key] = stream
    stream.synchronize()


def _objects(kind: Any) -> TypeError:
    return TypeError(f"elements of type {kind} are references to Python objects: their bytes mean nothing elsewhere")


def _scattered(what: str) -> ValueError:
    return ValueError(f"{what} is not contiguous, and a copy would be gone before it is read")


def in_place(value: Any) -> Memory:
    """`readable` for those who read after the call has returned: what is not contiguous is refused."""
    return readable(value, copy=False)


def readable(value: Any, copy: bool = True) -> Memory:
    """Memory to read from. A tensor or array that is not contiguous is copied first, or without `copy` ValueError."""
    if isinstance(value, bytes):
        pointer = ffi.from_buffer(value)
        return Memory(address_of(pointer), len(value), (pointer, value), False)
    if is_torch(value):
        dense = value
        lazy = value.is_conj() or value.is_neg()  # its memory has the numbers before they were conjugated or negated
        if lazy or not value.is_contiguous():
            if not copy:
                raise _scattered(f"a tensor of shape {tuple(value.shape)}")
            dense = value.detach().resolve_conj().resolve_neg().contiguous()
        cuda = dense.is_cuda
        if cuda:
            settle(dense)
        return Memory(dense.data_ptr(), dense.nbytes, dense, cuda)
    if is_numpy(value):
        if value.dtype.hasobject:
            raise _objects(value.dtype)
        if not copy and not value.flags.c_contiguous:
            raise _scattered(f"an array of shape {value.shape}")
        dense = sys.modules["numpy"].ascontiguousarray(value)
        return Memory(dense.ctypes.data, dense.nbytes, dense, False)
    array = value if isinstance(value, Array) else getattr(value, "array", None)
    if callable(array):  # a view
        array = array()
    if isinstance(array, Array):
        if array.strides is None:
            return Memory(array.address, array.nbytes, array, array.device >= 0)
        return readable(array.numpy() if array.device < 0 else array.torch(), copy)
    device = getattr(value, "__cuda_array_interface__", None)
    if device is not None:
        return _device_memory(device, value)
    view = memoryview(value)
    if "O" in view.format and "O" in re.sub(":.*?:", "", view.format):  # the names of fields are between colons
        raise _objects(view.format)
    if not view.c_contiguous:
        if not copy:
            raise _scattered(f"a buffer of shape {view.shape}")
        return readable(view.tobytes())
    pointer = ffi.from_buffer(view)
    return Memory(address_of(pointer), view.nbytes, (pointer, view), False)


def own_memory(tensor: Any) -> None:
    """ValueError if a tensor's numbers do not lie in memory as they are, one after the other."""
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("a tensor that is the conjugate or the negative of another one has no memory of its own")
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous")


def writable(value: Any) -> Memory:
    """Memory to write to: contiguous and not read-only, else ValueError."""
    if is_torch(value):
        own_memory(value)
        cuda = value.is_cuda
        if cuda:
            settle(value)
        return Memory(value.data_ptr(), value.nbytes, value, cuda)
    if is_numpy(value):
        if value.dtype.hasobject:
            raise _objects(value.dtype)
        if not value.flags.c_contiguous or not value.flags.writeable:
            raise ValueError(f"an array of shape {value.shape} is not {'writable' if value.flags.c_contiguous else 'contiguous'}")
        return Memory(value.ctypes.data, value.nbytes, value, False)
    if isinstance(value, Array):
        if value.readonly or value.strides is not None:
            raise ValueError(f"{value!r} is {'read-only' if value.readonly else 'not contiguous'}")
        return Memory(value.address, value.nbytes, value, value.device >= 0)
    device = getattr(value, "__cuda_array_interface__", None)
    if device is not None:
        return _device_memory(device, value)
    view = memoryview(value)
    if "O" in view.format and "O" in re.sub(":.*?:", "", view.format):  # the names of fields are between colons
        raise _objects(view.format)
    if view.readonly or not view.c_contiguous:
        raise ValueError(f"a buffer of {view.nbytes} bytes is {'read-only' if view.readonly else 'not contiguous'}")
    pointer = ffi.from_buffer(view, require_writable=True)
    return Memory(address_of(pointer), view.nbytes, (pointer, view), False)


def _device_memory(interface: Dict[str, Any], keep: Any) -> Memory:
    if interface.get("strides") is not None:
        raise ValueError("device memory with strides is not contiguous")
    size = int(interface["typestr"][2:])
    return Memory(interface["data"][0], size * product(interface["shape"]), keep, True)


_DRIVER: List[Any] = []


def cuda_device_of(address: int) -> int:
    """The CUDA device that an address belongs to, as this process counts devices; -1 if that cannot be said."""
    if not _DRIVER:
        try:
            _DRIVER.append(ctypes.CDLL("libcuda.so.1"))
        except OSError:
            _DRIVER.append(None)
    if _DRIVER[0] is None:
        return -1
    ordinal = ctypes.c_int32(-1)
    failed = _DRIVER[0].cuPointerGetAttribute(ctypes.byref(ordinal), 9, ctypes.c_uint64(address))  # DEVICE_ORDINAL
    return -1 if failed else ordinal.value


# ---- what the library gives ---------------------------------------------------------------------------------------------


def buffer_of(lease: Any, nbytes: int, readonly: bool) -> memoryview:
    """Host memory behind a lease. The view, its slices and the arrays made of it keep the lease."""
    view = memoryview(ffi.buffer(lease, nbytes)) if nbytes else memoryview(bytearray())
    return view.toreadonly() if readonly else view


class Array:
    """Memory of the library as an array, on host or GPU, without a copy. `numpy()`, `torch()`, `numpy.asarray`, `torch.from_dlpack`
    and everything else that takes DLPack or the CUDA array interface look at the same bytes, and keep them where they are.
    """

    def __init__(self, lease: Any, shape: Sequence[int], dtype: str, *, strides: Optional[Sequence[int]] = None,
                 device: int = -1, readonly: bool = False) -> None:
        self._lease = lease
        self.shape = tuple(shape)
        #: Name of the element type, as torch spells it.
        self.dtype = dtype
        #: In elements, or None if it is contiguous.
        self.strides = tuple(strides) if strides is not None else None
        #: CUDA device; -1 for the host.
        self.device = device
        self.readonly = readonly
        type_bytes(dtype)

    @property
    def address(self) -> int:
        """Of the first element; a device pointer on a GPU."""
        return address_of(self._lease)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return product(self.shape) * type_bytes(self.dtype)

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to behind the last one."""
        if self.strides is None or self.nbytes == 0:
            return self.nbytes
        last = sum((length - 1) * stride for length, stride in zip(self.shape, self.strides))
        return (last + 1) * type_bytes(self.dtype)

    @property
    def data(self) -> memoryview:
        """Its bytes from the first element to the last; host memory only."""
        if self.device >= 0:
            raise ValueError(f"the array is on CUDA device {self.device}: use torch(), DLPack or address")
        return buffer_of(self._lease, self.span_bytes, self.readonly)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        where = "host" if self.device < 0 else f"cuda:{self.device}"
        return f"nanomc.Array(shape={self.shape}, dtype={self.dtype!r}, {where}, {self.address:#x})"

    def numpy(self) -> Any:
        """As a numpy array. Types that numpy does not have come as unsigned integers of their size."""
        import numpy

        size, _, letter = _TYPES[self.dtype]
        flat: Any = numpy.frombuffer(self.data, dtype=numpy.uint8)
        kind = numpy.dtype(letter or f"u{size}")
        strides = None if self.strides is None else tuple(stride * size for stride in self.strides)
        made: Any = numpy.ndarray(self.shape, kind, flat, 0, strides)
        if self.readonly:
            made.flags.writeable = False
        return made

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        made = self.numpy()
        if dtype is not None and made.dtype != dtype:
            if copy is False:
                raise ValueError(f"{self.dtype} as {dtype} needs a copy")
            return made.astype(dtype)
        return made.copy() if copy else made

    def torch(self) -> Any:
        """As a torch tensor. torch does not know read-only memory: what is read-only here must not be written there."""
        import torch

        kind = getattr(torch, self.dtype)
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=kind, device="cpu" if self.device < 0 else f"cuda:{self.device}")
        if self.device < 0:
            typed = torch.frombuffer(buffer_of(self._lease, self.span_bytes, False), dtype=kind)
        else:
            import torch.utils.dlpack

            span = Array(self._lease, (self.span_bytes,), "uint8", device=self.device)
            typed = torch.utils.dlpack.from_dlpack(span).view(kind)
        if self.strides is not None:
            return typed.as_strided(self.shape, self.strides)
        return typed.view(self.shape)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        letter = _TYPES[self.dtype][2]
        if self.device < 0 or letter is None:
            raise AttributeError("not on a GPU" if self.device < 0 else f"{self.dtype} has no letter there")
        size = type_bytes(self.dtype)
        strides = None if self.strides is None else tuple(stride * size for stride in self.strides)
        kind = ("|" if size == 1 else "<") + letter
        return {"shape": self.shape, "typestr": kind, "data": (self.address, self.readonly), "strides": strides, "version": 3}

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (CPU, 0) if self.device < 0 else (CUDA, self.device)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("this memory is passed on where it is, without a copy")
        return _capsule(self)


# ---- DLPack ---------------------------------------------------------------------------------------------------------------
# A capsule holds a DLManagedTensor. Its deleter may be called on any thread, when whoever took the tensor lets go of it.


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_NAME = b"dltensor"  # the capsule keeps a pointer to it
_TAKEN: Dict[int, List[Any]] = {}  # by address of the struct: what must live until its deleter is called


_PYTHON = ctypes.PyDLL(None)  # an instance of its own: nobody else's argument types change
_PYTHON.PyCapsule_GetPointer.restype = ctypes.c_void_p
_PYTHON.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_PYTHON.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_PYTHON.PyCapsule_New.restype = ctypes.py_object
_PYTHON.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _delete(address: Optional[int]) -> None:
    if address is not None:
        _TAKEN.pop(address, None)


def _collect(capsule: int) -> None:
    """Nobody took the tensor out of the capsule: whoever does changes its name."""
    if _PYTHON.PyCapsule_IsValid(capsule, _NAME):
        _delete(_PYTHON.PyCapsule_GetPointer(capsule, _NAME))


_DELETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_COLLECT = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_collect)
# Tensors may outlive this module while the interpreter ends; their deleter must not.
for _immortal in (_DELETE, _COLLECT):
    _PYTHON.Py_IncRef(ctypes.py_object(_immortal))


def _capsule(array: Array) -> Any:
    size, code, _ = _TYPES[array.dtype]
    count = len(array.shape)
    shape = (ctypes.c_int64 * max(count, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(count, 1))(*array.strides) if array.strides is not None else None
    kind, number = array.__dlpack_device__()
    made = _Tensor(
        array.address, kind, number, count, code, 8 * size, 1, ctypes.addressof(shape),
        ctypes.addressof(strides) if strides is not None else None, 0, None, ctypes.cast(_DELETE, ctypes.c_void_p).value)
    address = ctypes.addressof(made)
    _TAKEN[address] = [made, shape, strides, array._lease]
    return _PYTHON.PyCapsule_New(address, _NAME, ctypes.cast(_COLLECT, ctypes.c_void_p).value)
