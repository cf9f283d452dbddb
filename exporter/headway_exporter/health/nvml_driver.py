"""Questions to NVIDIA's driver, through NVML and its own Python bindings (package nvidia-ml-py, module `pynvml`). Each may hang or crash.

Errors come in three sizes: what a GPU or a driver does not support is None; a GPU that is gone is `GpuLostError`; a driver that is gone
is the bindings' own `NVMLError`. Imported by the process that asks only (`nvml_child`), whose memory is to be small.
"""

from __future__ import annotations

import importlib
import math
import warnings
from typing import TYPE_CHECKING, Any, Final

from headway_exporter.health.nvml_fields import MOST_LINKS, PLAIN_FIELDS, link_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headway_exporter.health.nvml_fields import Field

_FIELDS_AT_ONCE: Final = 64
MOST_GPUS: Final = 64
"""GPUs of a machine, and MIG instances of a GPU: a driver that counts more is out of its mind."""

# Return codes of NVML (nvml.h).
NO_PERMISSION: Final = 4
TIMEOUT: Final = 10
_FUNCTION_NOT_FOUND: Final = 13
LOST: Final = frozenset({15, 16, 28})
"""The GPU is lost, cannot be used before a reset, or is not found."""
NO_DRIVER: Final = frozenset({1, 9, 12, 18})
"""No GPU can answer: NVML is not initialised, no driver is loaded, there is no library, or it is of another version than the driver."""

_VALUE_TYPES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_NO_VALUES: Final = frozenset({2**32 - 1, 2**64 - 1})
"""NVML's way to say that a number is not available."""


class GpuLostError(Exception):
    """The driver says that the GPU is gone, or answers nothing about it."""


class NoDriverError(Exception):
    """There is no driver here, or nothing to ask it with."""


class Plan:
    """What a GPU can be asked: fields, and the numbers of its NVLinks."""

    __slots__ = ("fields", "links")

    def __init__(self, fields: tuple[Field, ...], links: tuple[int, ...]) -> None:
        self.fields = fields
        self.links = links


class Driver:
    """The driver, until the process ends."""

    def __init__(self) -> None:
        """Raises: NoDriverError when there is none here, NVMLError when it does not answer."""
        self.nvml = _bindings()
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError as error:
            if error.value in NO_DRIVER:
                raise NoDriverError(f"no NVIDIA driver ({error})") from error
            raise

    def ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer; None where it is not supported, or not answered this time."""
        try:
            return question(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in NO_DRIVER:
                raise
            if error.value in LOST:
                raise GpuLostError(str(error)) from error
            return None
        except UnicodeDecodeError:  # the bindings decode texts, of which a broken GPU may make anything
            return None

    def _number(self, question: Callable[..., Any], *arguments: Any) -> float | None:
        found = self.ask(question, *arguments)
        return None if found is None else _known(found)

    # Which GPUs there are.

    def count(self) -> int:
        """How many GPUs it counts; not all of them need be for this container."""
        count: int = self.nvml.nvmlDeviceGetCount()
        return min(count, MOST_GPUS)

    def handle(self, index: int) -> tuple[Any, str] | None:
        """Handle and UUID of a GPU, or (None, "") when it is lost; None: this container may not use it."""
        nvml = self.nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            return handle, nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            if error.value in NO_DRIVER:
                raise
            return None if error.value == NO_PERMISSION else (None, "")
        except UnicodeDecodeError:
            return None, ""

    def name(self, handle: Any) -> tuple[str, str]:
        """Its address on the bus and its model; empty where it does not tell."""
        bus = self.ask(lambda: self.nvml.nvmlDeviceGetPciInfo(handle).busId)
        model = self.ask(self.nvml.nvmlDeviceGetName, handle)
        return "" if bus is None else _text(bus), "" if model is None else _text(model)

    def parts(self, handle: Any) -> Iterator[str]:
        """UUIDs of its MIG instances."""
        nvml = self.nvml
        mode = self.ask(nvml.nvmlDeviceGetMigMode, handle)
        most = self.ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) if mode and mode[0] else 0
        for index in range(min(most or 0, MOST_GPUS)):
            part = self.ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            uuid = None if part is None else self.ask(nvml.nvmlDeviceGetUUID, part)
            if uuid:
                yield uuid

    # One GPU.

    def plan(self, handle: Any) -> Plan:
        """What of all that can be asked it answers; the rest would be refused each time."""
        links = tuple(link for link in range(MOST_LINKS) if self._link(handle, link) is not None)
        return Plan(tuple(self._fields(handle, (*PLAIN_FIELDS, *link_fields(links)))), links)

    def raw(self, handle: Any, plan: Plan) -> dict[str, Any]:
        """All that is known of it now: what `gpu_readings.Raw` holds, its fields as rows of number, scope and value."""
        nvml, number = self.nvml, self._number
        fields = self._fields(handle, plan.fields)
        memory = self.ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        utilization = self.ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        links = [self._link(handle, link) for link in plan.links]
        figures = {
            "utilization_percent": None if utilization is None else _known(utilization.gpu),
            "memory_used": None if memory is None else _known(memory.used),
            "memory_total": None if memory is None else _known(memory.total),
            "temperature": self._temperature(handle),
            "power_milliwatts": number(nvml.nvmlDeviceGetPowerUsage, handle),
            "power_limit_milliwatts": number(nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            "sm_megahertz": number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_megahertz": number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "throttle": self._throttle(handle),
        }
        if not fields and all(one is None for one in (*figures.values(), *links)):
            raise GpuLostError("the driver answers nothing about it")
        return {"fields": [[*key, value] for key, value in fields.items()], "links": links, **figures}

    def _fields(self, handle: Any, wanted: tuple[Field, ...]) -> dict[Field, float]:
        found: dict[Field, float] = {}
        for at in range(0, len(wanted), _FIELDS_AT_ONCE):
            some = list(wanted[at : at + _FIELDS_AT_ONCE])
            for one in self.ask(self.nvml.nvmlDeviceGetFieldValues, handle, some) or ():
                value = _field_value(one)
                if value is not None:
                    found[one.fieldId, one.scopeId] = value
        return found

    def _temperature(self, handle: Any) -> float | None:
        """By the old call, or the one that replaces it."""
        nvml = self.nvml
        found = self._number(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        newer = getattr(nvml, "nvmlDeviceGetTemperatureV", None)
        if found is None and newer is not None:
            found = self._number(newer, handle, nvml.NVML_TEMPERATURE_GPU)
        return found

    def _throttle(self, handle: Any) -> int | None:
        """By its name of today, or the one before driver 535."""
        nvml = self.nvml
        found: int | None = self.ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if found is None:
            found = self.ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return found

    def _link(self, handle: Any, link: int) -> int | None:
        state: int | None = self.ask(self.nvml.nvmlDeviceGetNvLinkState, handle, link)
        return state if state in (0, 1) else None


def _bindings() -> Any:
    """The module."""
    # NVRx 0.4.1 brings a package of that name, which warns of itself whenever the true one is imported.
    warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise NoDriverError("the package nvidia-ml-py is not installed (pip install 'headway[exporter]')") from error


def _field_value(answer: Any) -> float | None:
    if answer.nvmlReturn in LOST:
        raise GpuLostError(f"the driver says that it is lost (NVML code {answer.nvmlReturn})")
    if answer.nvmlReturn or not 0 <= answer.valueType < len(_VALUE_TYPES):
        return None
    return _known(getattr(answer.value, _VALUE_TYPES[answer.valueType]))


def _known(value: float) -> float | None:
    """Nothing that is asked for can be below 0."""
    return value if math.isfinite(value) and value >= 0 and value not in _NO_VALUES else None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
