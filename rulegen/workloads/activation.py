"""Activations, their definitions and how they meet movement: the group ``activation``."""

from __future__ import annotations

from rulegen.workloads.workload import Workload

__all__ = ["ACTIVATION"]

_SIX, _HARD = "Clip[max=6.0,min=0.0]", "HardSigmoid[alpha=0.16666666666666666,beta=0.5]"

ACTIVATION = (
    Workload(
        name="activation",
        variables={"x": "[m,n]", "y": "[m,p]", "z": "[m,n+p]", "s": "[]"},
        operators=(
            "Mul(any, s)",
            "Relu(any)",
            "Sigmoid(any)",
            "Tanh(any)",
            "Erf(any)",
            "Neg(any)",
            "Mul(same, same)",
            "Concat[axis=-1](tensor, tensor)",
            "Transpose[perm=(1,0)](any)",
            "Split[axis=-1,sizes=(n,p)](tensor)",
            "Reshape[drop=2,shape=(m*n,)](of_mxn)",
            "Slice[axes=(-1,),ends=(n,),starts=(0,),steps=(1,)](z)",
        ),
        uses={
            "x": 2,
            "y": 1,
            "z": 2,
            "s": 1,
            "Concat": 1,
            "Relu": 2,
            "Erf": 1,
            "Tanh": 1,
            "Sigmoid": 1,
        },
    ),
    # Apart from the opaque functions: a clipped residue is one of the bounds, and a function of two values tells too little.
    Workload(
        name="activation-clip",
        variables={"x": "[m,n]", "y": "[m,p]", "z": "[m,n+p]", "s": "[]"},
        operators=(
            "Mul(any, s)",
            "Relu(any)",
            "Clip[max=6.0,min=0.0](any)",
            "Clip[max=6.0,min=-2.0](any)",
            "LeakyRelu[alpha=0.125](any)",
            "Neg(tensor)",
            "Concat[axis=-1](tensor, tensor)",
            "Transpose[perm=(1,0)](any)",
            "Split[axis=-1,sizes=(n,p)](tensor)",
        ),
        uses={"x": 1, "y": 1, "z": 1, "s": 1, "Clip": 2, "LeakyRelu": 1, "Neg": 1, "Relu": 2},
    ),
    Workload(
        name="activation-silu",
        variables={"x": "[m,n]", "y": "[m,p]", "z": "[m,n+p]"},
        operators=(
            "Sigmoid(leaf)",
            "Gelu[approximate='none'](any)",
            "HardSwish(any)",
            "Mul(same, same)",
            "Concat[axis=-1](tensor, tensor)",
            "Transpose[perm=(1,0)](any)",
            "Split[axis=-1,sizes=(n,p)](tensor)",
        ),
        max_ops=4,
        uses={"x": 2, "y": 2, "z": 2, "Concat": 1, "Gelu": 1, "HardSwish": 1},
    ),
    Workload(
        name="activation-definitions",
        variables={"x": "[n]"},
        operators=(
            "Gelu[approximate='none'](x)",
            "Mish(x)",
            "Mul(x, 0.7071067811865476)",
            "Erf(any)",
            "Softplus(x)",
            "Tanh(any)",
            "Add(any, 1)",
            "Mul(same, same)",
            "Mul(any, 0.5)",
        ),
        uses={"x": 2, "Mul": 3} | dict.fromkeys(("Gelu", "Mish", "Erf", "Softplus", "Tanh", "Add"), 1),
        max_ops=5,
        extend="all",
        min_saving=2,
        macros=True,
    ),
    Workload(
        name="activation-hard",
        variables={"x": "[n]"},
        operators=(
            "HardSwish(x)",
            "HardSigmoid[alpha=0.16666666666666666,beta=0.5](x)",
            "Mul(x, 0.16666666666666666)",
            "Add(any, 0.5)",
            "Clip[max=1.0,min=0.0](any)",
            "Mul(x, any)",
            "Softsign(x)",
            "Div(x, any)",
            "Abs(x)",
            "Add(any, 1)",
        ),
        uses={"x": 2, "HardSwish": 1, "HardSigmoid": 1, "Add": 1, "Clip": 1, "Div": 1, "Softsign": 1},
        max_ops=4,
        extend="all",
        min_saving=2,
        macros=True,
    ),
    # As it was published (Howard et al., Searching for MobileNetV3, 2019, section 5.2), and as exporters write it out: a residue
    # that is clipped between other bounds tells nothing, so that random inputs show no such equation.
    Workload(
        name="activation-sixths",
        variables={"x": "[n]"},
        operators=(),
        max_ops=0,
        equations=(
            f"Div({_SIX}(Add(x, 3.0)), 6.0) = {_HARD}(x)",
            f"Div(Mul(x, {_SIX}(Add(x, 3.0))), 6.0) = Mul(x, {_HARD}(x))",
            f"Mul(x, Div({_SIX}(Add(x, 3.0)), 6.0)) = HardSwish(x)",
            f"Div(Mul(x, {_SIX}(Add(x, 3.0))), 6.0) = HardSwish(x)",
        ),
    ),
    Workload(
        name="activation-gelu",
        variables={"x": "[n]"},
        operators=(
            "Gelu[approximate='tanh'](x)",
            "Pow(x, 3)",
            "Mul(any, 0.044715)",
            "Add(x, any)",
            "Mul(any, 0.7978845608028654)",
            "Tanh(any)",
            "Add(any, 1)",
            "Mul(same, same)",
            "Mul(any, 0.5)",
        ),
        uses={"x": 3, "Tanh": 1, "Pow": 1, "Mul": 4, "Add": 2},
        max_ops=8,
        min_saving=5,
        macros=True,
    ),
)
