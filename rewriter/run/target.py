"""The device and runtime that a model is optimised for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnxruntime as ort

from rewriter.cost import Device, ProfileError, default_device, get_device, read_table
from rewriter.reference import InputError
from rewriter.run.options import Options
from rewriter.runtime_env import environment, gpu_architecture, pick_provider, usable_providers

__all__ = ["Target", "asks_for_kernels", "choose_target", "may_have_kernels"]


@dataclass(frozen=True, slots=True)
class Target:
    """A device with a runtime, for which a model is optimised.

    Attributes:
        environment: device, versions and provider, in words: part of the key of all that is remembered.
        device: whose roofline fills gaps.
        here: it is this machine, so that results can be measured end to end.
        costs: measured costs, from a table.
        schedules: of the kernels among them.
    """

    environment: str
    provider: str
    device: Device
    here: bool
    costs: Mapping[str, float]
    schedules: Mapping[str, str] = field(default_factory=dict)

    @property
    def run_on(self) -> str:
        """The provider that candidates run on here, to see whether they are right."""
        return self.provider if self.here else "cpu"


def choose_target(options: Options) -> Target:
    """The target that options name.

    Raises:
        InputError: an unknown device, or options about custom kernels for a target that has none.
        ProviderError: a provider that does not work here.
        ProfileError: a cost table that cannot be read, of another onnxruntime or provider.
    """
    target = _named_target(options.provider, options.costs, options.device)
    names_kernels = options.architectures is not None or options.kernels_folder is not None
    if names_kernels and not asks_for_kernels(options, target):
        raise InputError(
            "custom kernels are for GPUs: name one by --device, --costs or --provider cuda, "
            "without --no-kernels and --standard-ops; or give --cpu-kernels"
        )
    return target


def may_have_kernels(options: Options) -> bool:
    """Whether the target that options name may have custom kernels. Raises as :func:`choose_target`."""
    return asks_for_kernels(options, choose_target(options))


def asks_for_kernels(options: Options, target: Target) -> bool:
    """Whether options ask for custom kernels for a target."""
    return options.kernels and not options.standard and (target.provider == "cuda" or options.cpu_kernels)


def _named_target(provider: str, costs: Path | None, device: str | None) -> Target:
    if costs is None and device is None:
        provider = pick_provider(provider)
        return Target(environment(provider), provider, _device_here(provider), True, {})
    try:
        roofline = get_device(device) if device is not None else None
    except KeyError as problem:
        raise InputError(f"--device: {problem.args[0]}") from None
    if costs is None:
        assert roofline is not None
        words = f"{roofline.name} by its roofline | onnxruntime {ort.__version__} | {roofline.provider}"
        target = Target(words, roofline.provider, roofline, False, {})
    else:
        table = read_table(costs)
        if table.version != ort.__version__:
            raise ProfileError(
                f"{costs}: measured with onnxruntime {table.version}, this is {ort.__version__}; "
                "measure again with this version or install that one"
            )
        here = table.provider in usable_providers() and table.environment == environment(table.provider)
        default = _device_here(table.provider) if here else default_device(table.provider, table.environment)
        target = Target(table.environment, table.provider, roofline or default, here, table.costs, table.schedules)
    if provider not in ("auto", target.provider):
        raise ProfileError(f"{costs or device}: is about provider {target.provider}, not {provider}; leave --provider out")
    return target


def _device_here(provider: str) -> Device:
    """The named device that this machine has, or the usual one, with the architecture of the GPU that is here."""
    device = default_device(provider, environment(provider))
    return replace(device, architecture=gpu_architecture() or device.architecture) if provider == "cuda" else device
