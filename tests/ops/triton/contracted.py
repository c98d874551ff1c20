"""Makes Triton's interpreter round a float32 product and sum once, as one operation, as compilers do on a GPU.

A kernel that subtracts from a product then subtracts from the exact product, not from the rounded one.
"""

import operator

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_multiply = InterpreterBuilder.create_fmul


def _fused(x, y, z, op=operator.add):
    """x·y ± z; products of float32 are exact in float64."""
    exact = op(x.data.astype(np.float64) * y.data.astype(np.float64), z.data.astype(np.float64))
    return TensorHandle(exact.astype(np.float32), z.dtype.scalar)


def _product(self, x, y):
    made = _multiply(self, x, y)
    if made.data.dtype == np.float32:
        made.factors = x, y
    return made


def _contracting(plain, op):
    def done(self, x, y):
        if hasattr(x, "factors"):
            return _fused(*x.factors, y, op)
        if hasattr(y, "factors"):
            a, b = y.factors
            return _fused(a, b, x) if op is operator.add else _fused(a, TensorHandle(-b.data, b.dtype), x)
        return plain(self, x, y)

    return done


def contract():
    """Start contracting."""
    if InterpreterBuilder.create_fmul is _product:
        return
    InterpreterBuilder.create_fmul = _product
    for name, op in (("create_fadd", operator.add), ("create_fsub", operator.sub)):
        setattr(InterpreterBuilder, name, _contracting(getattr(InterpreterBuilder, name), op))
    plain = InterpreterBuilder.create_fma
    InterpreterBuilder.create_fma = lambda self, x, y, z: (
        _fused(x, y, z) if z.data.dtype == np.float32 else plain(self, x, y, z)
    )
