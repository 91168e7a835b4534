"""Gram matrices and eigenvectors, computed without the GIL so that threads can decompose layers in parallel.

On the CPU this calls the LAPACK and BLAS routines bundled with SciPy (OpenBLAS), through the pointers that SciPy
publishes: ctypes releases the GIL during a call, SciPy's and numpy's own wrappers do not. Call them with one BLAS
thread (`merganser.workers`): a result then has the same bits on every machine. The number of threads can only be set
once the BLAS is loaded, so this module imports SciPy at the top. On a GPU, torch's routines are used.

Legend: a *Gram matrix* (N, N) is symmetric, float64 and contiguous; only its upper triangle is read or written.
Functions whose name ends in `_` overwrite their input. Eigenvalues ascend.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from scipy.linalg import cython_blas, cython_lapack
from torch import Tensor, linalg

ROWS = 512  # rows converted to float64 at a time
PANEL = 64  # LAPACK's block size, in columns
FEW = 4  # for at most N / FEW vectors inverse iteration is faster: 33 ms, not 63, for 96 of 768
MANY = 2048  # from this N on, use the algorithm without an N x N workspace (75 MB for N = 3072)


def gram(matrix: Tensor, out: Tensor | None = None, sign: float = 1.0) -> Tensor:
    """Return matrix^T matrix (N, N) of an M x N matrix, or add it, times `sign`, to a Gram matrix `out` in place.

    Rows are converted to float64 block by block. For the Gram matrix of the rows, pass the transpose.

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
        as_rows = exact.stride(1) == 1  # Fortran reads a row-major matrix as its transpose
        leading = max(1, size if as_rows else len(rows), exact.stride(0 if as_rows else 1))
        trans = b"N" if as_rows else b"T"
        _call("dsyrk", b"L", trans, size, len(rows), sign, exact, leading, 1.0, out, max(1, size))
    return out


def product(matrix: Tensor, right: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return matrix (M, N) @ right (N, K), computed in float64; rows are converted block by block.

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
    _refuse_nan(gram)
    if gram.is_cuda:
        values, vectors = linalg.eigh(gram, UPLO="U") if count else (linalg.eigvalsh(gram, UPLO="U"), gram[:, :0])
        return values, vectors[:, size - count :]
    if size == 0:
        return gram.new_empty(0), gram.new_empty(0, 0)
    diagonal, beside, reflectors = _tridiagonal_(gram)
    decomposed = _some_vectors(diagonal, beside, count) if FEW * count <= size else None
    decomposed = decomposed or (_in_little_memory(diagonal, beside) if size >= MANY else None)
    values, rows = decomposed or _all_vectors(diagonal, beside)
    rows = rows[len(rows) - count :]
    if count:
        workspace, info = gram.new_empty(PANEL * (size + PANEL + 1)), ctypes.c_int()
        orders = (b"L", b"L", b"N", size, count, gram, size, reflectors, rows, size, workspace, len(workspace), info)
        _call("dormtr", *orders)
    return values, rows.mT


def each_eigh_top_(grams: list[Tensor], count: int) -> list[tuple[Tensor, Tensor]]:
    """Return what `eigh_top_` does for each Gram matrix of one size; a GPU decomposes them in one call.

    >>> [values.tolist() for values, _ in each_eigh_top_([torch.eye(2, dtype=torch.float64)] * 2, 0)]
    [[1.0, 1.0], [1.0, 1.0]]
    """
    if len(grams) == 1 or not grams[0].is_cuda or not count:
        return [eigh_top_(gram, count) for gram in grams]
    joined = torch.stack(grams)
    grams.clear()
    _refuse_nan(joined)
    values, vectors = linalg.eigh(joined, UPLO="U")
    return list(zip(values, vectors[:, :, max(0, joined.shape[1] - count) :], strict=True))


def _refuse_nan(gram: Tensor) -> None:
    if not bool(gram.diagonal(dim1=-2, dim2=-1).isfinite().all()):  # LAPACK may loop forever
        raise ValueError("cannot decompose a matrix that holds NaN or infinity")


def _tridiagonal_(gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reduce a Gram matrix to tridiagonal form; return its diagonal, its off-diagonal and the reflectors' scales (N,).

    The reflectors themselves overwrite the Gram matrix.
    """
    size = len(gram)
    diagonal, beside, reflectors = (gram.new_zeros(size) for _ in range(3))
    workspace, info = gram.new_empty(PANEL * size), ctypes.c_int()
    _call("dsytrd", b"L", size, gram, size, diagonal, beside, reflectors, workspace, len(workspace), info)
    return diagonal, beside, reflectors


def _some_vectors(diagonal: Tensor, beside: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """Return the eigenvalues (N,) of a tridiagonal matrix, and in rows the eigenvectors (K, N) of the `count` largest.

    By inverse iteration; None if the matrix is block diagonal, or an iteration does not converge.
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
    """Return what `_all_vectors` does by relatively robust representations (MRRR), which takes a tenth longer.

    None if it fails, as it does when many eigenvalues are equal. The vectors are orthogonal to 1e-12, not 1e-14.
    """
    size, counted, info = len(diagonal), ctypes.c_int(), ctypes.c_int()
    values, rows, checked = torch.empty_like(diagonal), diagonal.new_empty(size, size), ctypes.c_int(1)
    workspace, numbers = diagonal.new_empty(18 * size), torch.empty(10 * size, dtype=torch.int32)
    ends, spaces = torch.empty(2 * size, dtype=torch.int32), (workspace, len(workspace), numbers, len(numbers), info)
    matrix = (size, diagonal.clone(), beside.clone(), 0.0, 0.0, 0, 0)
    _call("dstemr", b"V", b"A", *matrix, counted, values, rows, size, size, ends, checked, *spaces)
    return None if info.value else (values, rows)


def _call(name: str, *arguments: Any) -> None:
    """Call a Fortran routine, which takes every argument by its address."""
    _routine(name)(*map(_address, arguments))


@cache
def _routine(name: str) -> Callable[..., None]:
    """Return a routine from the capsule that SciPy publishes; the capsule's name is the routine's C declaration."""
    table = {**cython_blas.__pyx_capi__, **cython_lapack.__pyx_capi__}
    declaration, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    declaration.restype, declaration.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    declared = declaration(table[name])
    if b", int *" not in declared:
        raise ImportError(f"scipy.linalg declares {name} as {declared!r}: its integers are not 32 bits wide")
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
