"""Gram matrices, eigenvectors, Cholesky factors, in a way that lets layers be decomposed in parallel threads.

On the CPU these are the LAPACK and BLAS routines that SciPy brings (OpenBLAS), called through the pointers that SciPy
publishes: ctypes gives Python's lock up for the time of a call, which SciPy's and numpy's own wrappers do not. Calls
are to be made with one BLAS thread (`merganser.workers`): then a result has the same bits wherever it is computed. Only
a BLAS that is loaded can be told so: SciPy is imported with this module, not by the first call. On a GPU they are
torch's.

Legend: a *Gram matrix* (N, N) is symmetric, in float64 and contiguous; only the entries on and above its diagonal are
ever read or written. Functions whose name ends in `_` overwrite what they are given. Eigenvalues ascend.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from scipy.linalg import cython_blas, cython_lapack
from torch import Tensor, linalg

ROWS = 512  # of a matrix that are in float64 at a time
PANEL = 64  # columns LAPACK may work on at a time
FEW = 4  # up to a FEW-th of the vectors are found faster one by one than all together: 33 ms, not 63, for 96 of 768
MANY = 2048  # from so many vectors on they are found in little memory: another N x N would be 75 MB for 3072
LETTERS = {torch.float32: "s", torch.float64: "d"}


def gram(matrix: Tensor, out: Tensor | None = None, sign: float = 1.0) -> Tensor:
    """Return matrix^T matrix (N, N) of an M x N matrix, or add it, times `sign`, to a Gram matrix `out` in place.

    Rows are turned to float64 a block at a time. For the Gram matrix of the rows give the matrix's transpose.

    >>> gram(torch.tensor([[1.0, 2.0], [0.0, 1.0]])).triu()
    tensor([[1., 2.],
            [0., 5.]], dtype=torch.float64)
    """
    size = matrix.shape[1]
    if out is None:
        out = matrix.new_zeros((size, size), dtype=torch.float64)
    for rows in in_blocks(matrix):
        exact = rows.double()
        if exact.is_cuda:
            out.addmm_(exact.mT, exact, alpha=sign)
            continue
        if 1 not in exact.stride():
            exact = exact.contiguous()
        as_rows = exact.stride(1) == 1  # to Fortran, the transpose of what is stored row by row
        leading = max(1, size if as_rows else len(rows), exact.stride(0 if as_rows else 1))
        trans = b"N" if as_rows else b"T"
        _call("dsyrk", b"L", trans, size, len(rows), sign, exact, leading, 1.0, out, max(1, size))
    return out


def product(matrix: Tensor, right: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return matrix (M, N) @ right (N, K), computed in float64; rows are turned to it a block at a time.

    >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]], dtype=torch.float64))
    tensor([[11.]], dtype=torch.float64)
    """
    out = matrix.new_empty((len(matrix), right.shape[1]), dtype=dtype)
    for rows, into in zip(in_blocks(matrix), in_blocks(out), strict=True):
        if dtype == torch.float64:
            torch.mm(rows.double(), right, out=into)
        else:
            into.copy_(rows.double() @ right)
    return out


def in_blocks(matrix: Tensor) -> tuple[Tensor, ...]:
    """Cut a matrix into blocks of rows; one block on a GPU."""
    return matrix.split(max(1, len(matrix)) if matrix.is_cuda else ROWS)


def eigenvalues_(gram: Tensor) -> Tensor:
    """Return the eigenvalues (N,) of a Gram matrix.

    >>> eigenvalues_(torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64))
    tensor([1., 3.], dtype=torch.float64)
    """
    return eigh_top_(gram, 0)[0]


def eigh_(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues (N,) of a Gram matrix and its eigenvectors (N, N), in columns."""
    return eigh_top_(gram, len(gram))


def eigh_top_(gram: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return all eigenvalues (N,) of a Gram matrix and the eigenvectors (N, K) of its `count` largest, in columns.

    One reduction to tridiagonal form serves both. Raises ValueError at NaN or infinity.

    >>> values, vectors = eigh_top_(torch.tensor([[4.0, 0.0], [0.0, 9.0]], dtype=torch.float64), 1)
    >>> values, vectors.abs()
    (tensor([4., 9.], dtype=torch.float64), tensor([[0.],
            [1.]], dtype=torch.float64))
    """
    size = len(gram)
    count = min(count, size)
    if not bool(gram.diagonal().isfinite().all()):  # LAPACK may not come back from it
        raise ValueError("a matrix to decompose holds NaN or infinity")
    if gram.is_cuda:
        values, vectors = linalg.eigh(gram, UPLO="U") if count else (linalg.eigvalsh(gram, UPLO="U"), gram[:, :0])
        return values, vectors[:, size - count :]
    if size == 0:
        return gram.new_empty(0), gram.new_empty(0, 0)
    diagonal, beside, reflectors = _tridiagonal_(gram)
    found = _some_vectors(diagonal, beside, count) if FEW * count <= size else None
    found = found or (_in_little_memory(diagonal, beside) if size >= MANY else None)
    values, rows = found or _all_vectors(diagonal, beside)
    rows = rows[len(rows) - count :]
    if count:
        workspace, info = gram.new_empty(PANEL * (size + PANEL + 1)), ctypes.c_int()
        orders = (b"L", b"L", b"N", size, count, gram, size, reflectors, rows, size, workspace, len(workspace), info)
        _call("dormtr", *orders)
    return values, rows.mT


def cholesky_(gram: Tensor) -> Tensor:
    """Return the upper triangular R with R^T R = gram, of a positive definite matrix in float32 or float64.

    Raises torch.linalg.LinAlgError where it is not positive definite.

    >>> cholesky_(torch.tensor([[4.0, 2.0], [2.0, 10.0]]))
    tensor([[2., 1.],
            [0., 3.]])
    """
    if gram.is_cuda:
        return linalg.cholesky(gram, upper=True)
    info = ctypes.c_int()
    _call(f"{LETTERS[gram.dtype]}potrf", b"L", len(gram), gram, max(1, len(gram)), info)
    if info.value:
        raise linalg.LinAlgError(f"not positive definite: its leading minor of order {info.value} is not")
    return gram.triu_()


def solve_(upper: Tensor, right: Tensor, *, transposed: bool = False) -> Tensor:
    """Return X (N, K) with R X = right, or R^T X = right, for an upper triangular R (N, N) of the same dtype.

    >>> solve_(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([[4.0], [6.0]]))
    tensor([[1.],
            [2.]])
    """
    if upper.is_cuda:
        return linalg.solve_triangular(upper.mT if transposed else upper, right, upper=not transposed)
    rows, columns = right.shape
    assert right.is_contiguous()
    sides = (b"R", b"L", b"T" if transposed else b"N", b"N")  # X^T stands left of what Fortran reads as R^T
    one = ctypes.c_float(1.0) if upper.dtype == torch.float32 else ctypes.c_double(1.0)
    leading = (max(1, rows), max(1, columns))
    _call(f"{LETTERS[upper.dtype]}trsm", *sides, columns, rows, one, upper, leading[0], right, leading[1])
    return right


def _tridiagonal_(gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reduce a Gram matrix; return the diagonal (N,), what is beside it and the scales of the reflectors left in it."""
    size = len(gram)
    diagonal, beside, reflectors = (gram.new_zeros(size) for _ in range(3))
    workspace, info = gram.new_empty(PANEL * size), ctypes.c_int()
    _call("dsytrd", b"L", size, gram, size, diagonal, beside, reflectors, workspace, len(workspace), info)
    return diagonal, beside, reflectors


def _some_vectors(diagonal: Tensor, beside: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """Return the eigenvalues (N,) of a tridiagonal matrix, and in rows the eigenvectors (K, N) of the `count` largest.

    By inverse iteration; None where the matrix falls into parts, or an iteration does not converge.
    """
    size, values, info = len(diagonal), diagonal.clone(), ctypes.c_int()
    _call("dsterf", size, values, beside.clone(), info)
    rows = diagonal.new_empty(count, size)
    magnitudes = diagonal.abs().sqrt()
    smallest = torch.finfo(torch.float64).eps * magnitudes[:-1] * magnitudes[1:]
    if info.value or (count and bool((beside[:-1].abs() <= smallest).any())):
        return None
    if count:
        blocks, ends = torch.ones(size, dtype=torch.int32), torch.full((size,), size, dtype=torch.int32)
        whole = (size, diagonal, beside, count, values[-count:], blocks, ends)
        workspace, counts, failed = diagonal.new_empty(5 * size), torch.empty_like(blocks), torch.empty_like(blocks)
        _call("dstein", *whole, rows, size, workspace, counts, failed, info)
    return None if info.value else (values, rows)


def _all_vectors(diagonal: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues (N,) and eigenvectors (N, N) in rows of a tridiagonal matrix, by divide and conquer."""
    size = len(diagonal)
    values, rows, info = diagonal.clone(), diagonal.new_empty(size, size), ctypes.c_int()
    workspace, numbers = diagonal.new_empty(1 + 4 * size + size**2), torch.empty(3 + 5 * size, dtype=torch.int32)
    spaces = (workspace, len(workspace), numbers, len(numbers), info)
    _call("dstedc", b"I", size, values, beside.clone(), rows, size, *spaces)
    if info.value:
        raise linalg.LinAlgError(f"dstedc: an eigenvalue did not converge ({info.value})")
    return values, rows


def _in_little_memory(diagonal: Tensor, beside: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the same by relatively robust representations, a tenth slower; None where that fails.

    It does where many eigenvalues are equal. The vectors are orthogonal to 1e-12, not 1e-14.
    """
    size, counted, info = len(diagonal), ctypes.c_int(), ctypes.c_int()
    values, rows, checked = torch.empty_like(diagonal), diagonal.new_empty(size, size), ctypes.c_int(1)
    workspace, numbers = diagonal.new_empty(18 * size), torch.empty(10 * size, dtype=torch.int32)
    ends, spaces = torch.empty(2 * size, dtype=torch.int32), (workspace, len(workspace), numbers, len(numbers), info)
    matrix = (size, diagonal.clone(), beside.clone(), 0.0, 0.0, 0, 0)
    _call("dstemr", b"V", b"A", *matrix, counted, values, rows, size, size, ends, checked, *spaces)
    return None if info.value else (values, rows)


def _call(name: str, *arguments: Any) -> None:
    """Call a routine; every argument goes by its address, as Fortran has it."""
    _routine(name)(*map(_address, arguments))


@cache
def _routine(name: str) -> Callable[..., None]:
    """Find a routine by the pointer that SciPy publishes; its C declaration is the pointer's name."""
    table = {**cython_blas.__pyx_capi__, **cython_lapack.__pyx_capi__}
    declaration, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    declaration.restype, declaration.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    declared = declaration(table[name])
    if b", int *" not in declared:
        raise ImportError(f"scipy.linalg declares {name} as {declared!r}: it counts in other than 32-bit integers")
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (declared.count(b",") + 1))
    return prototype(pointer(table[name], declared))


def _address(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, bytes):
        return ctypes.c_char_p(value)
    if isinstance(value, int):
        return ctypes.byref(ctypes.c_int(value))
    return ctypes.byref(ctypes.c_double(value) if isinstance(value, float) else value)
