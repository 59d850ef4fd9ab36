"""Takes coremltools' place in a worker, on machines without Core ML: computes with the interpreter.

It has the part of coremltools that the worker uses, and is stricter: arrays must be float32, of the
shapes and with just the names that the package says, and must outlive the prediction (see
`runtime/encoder.py`). What a worker did is written down, and what shall go wrong is read from
files:
`Faults` is the tests' end of that.
"""

import enum
import json
import os
import shutil
import signal
import weakref
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tests.coreml.interpreter import Interpreter

ARITHMETIC = "COREML_STAND_IN_ARITHMETIC"
"""The variable that says how results are rounded: "half", to half precision after each operation,
as the Neural Engine stores them; and after that, separated by commas, the modes of
`interpreter.narrow`."""
FOLDER = "COREML_STAND_IN"
"""The variable that names the folder of `Faults`."""
_HALF, *_NARROW = os.environ.get(ARITHMETIC, "").split(",")


class ComputeUnit(enum.Enum):
    CPU_ONLY = 0
    CPU_AND_GPU = 1
    CPU_AND_NE = 2
    ALL = 3


@dataclass
class Faults:
    """What workers shall do wrong, and what they did; both in a folder."""

    folder: Path

    def add(self, what: str, **where) -> None:
        """`what`: "kill", "fail", "odd" (an exception), "lie" or "nan".

        `at`: "predict", "load", "compile" or "plan"; `function`: how its name begins; `once`: at
        one call.
        """
        rule = {"what": what, "at": "predict", "function": "", "once": True} | where
        n = len(list(self.folder.glob("fault-*")))
        (self.folder / f"fault-{n}").write_text(json.dumps(rule))

    def clear(self) -> None:
        """Let everything go well from now on."""
        for file in self.folder.glob("fault-*"):
            file.unlink()

    def done(self) -> list[list[str]]:
        """Of each call of Core ML: "load", "free" or "predict", compute unit, function."""
        log = self.folder / "log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


@cache
def _folder() -> Path | None:
    name = os.environ.get(FOLDER)
    return Path(name) if name else None


def _happens(at: str, unit: str, function: str) -> str:
    """Write the call down; the name of the fault that is due, if any."""
    if _folder() is None:
        return ""
    with (_folder() / "log").open("a") as log:
        log.write(f"{at} {unit} {function}\n")
    for file in sorted(_folder().glob("fault-*")):
        try:
            rule = json.loads(file.read_text())
        except FileNotFoundError:
            continue  # another process had it
        if rule["at"] != at or not function.startswith(rule["function"]):
            continue
        if rule["once"]:
            file.unlink()
        return rule["what"]
    return ""


def _suffer(fault: str) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "odd":
        raise Exception("Unable to load any compiled models")  # as coremltools does
    elif fault == "fail":
        raise RuntimeError("Unable to compute the prediction using a neural network model.")


@cache
def _interpreter(path: str) -> Interpreter:
    return Interpreter(Path(path), tuple(_NARROW))


class CompiledMLModel:
    def __init__(
        self, path: str, compute_units: ComputeUnit = ComputeUnit.ALL, function_name=None
    ) -> None:
        assert isinstance(path, str)
        assert path.endswith(".mlmodelc"), path
        assert isinstance(compute_units, ComputeUnit)
        self._path, self._unit = path, compute_units.name
        self._interpreter = _interpreter(path)
        self._function = function_name or "main"
        signature = self._interpreter.program.functions[self._function]
        self._inputs = {tensor.name: tensor.shape for tensor in signature.inputs}
        self._given: list[weakref.ref] = []
        _suffer(_happens("load", self._unit, self._function))
        weakref.finalize(self, _happens, "free", self._unit, self._function)

    def predict(self, data: dict[str, np.ndarray]) -> dict:
        fault = _happens("predict", self._unit, self._function)
        _suffer(fault)
        if any(array() is None for array in self._given):
            os.kill(os.getpid(), signal.SIGSEGV)  # as apple/coremltools #2827
        _check(self._inputs, data)
        self._given = [weakref.ref(array) for array in data.values()]
        found = self._interpreter.run(self._function, data, half=bool(_HALF))
        if fault in ("lie", "nan"):
            factor = np.float32(1.1 if fault == "lie" else np.nan)
            found = {name: array * factor for name, array in found.items()}
        return found


def _check(expected: dict[str, tuple[int, ...]], given: dict[str, np.ndarray]) -> None:
    assert type(given) is dict
    for name, array in given.items():
        assert type(array) is np.ndarray, (name, type(array))
        assert array.dtype == np.float32, (name, array.dtype)
        assert np.abs(array).max() <= 65504, f"{name} is too large for half precision"
    assert {name: array.shape for name, array in given.items()} == expected


def _compile_model(model: str, destination_path: str) -> None:
    assert model.endswith(".mlpackage")
    assert destination_path.endswith(".mlmodelc")
    os.write(1, b"coremlcompiler: 0 errors, and this line below Python\n")
    _suffer(_happens("compile", "any", Path(model).stem))
    shutil.copytree(model, destination_path, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy(source, target)


class MLCPUComputeDevice:
    """Runs what the others cannot."""


class MLNeuralEngineComputeDevice:
    """Runs all but softmax."""


class MLComputePlan:
    """As ``coremltools.models.compute_plan`` has it; dies if a fault says so.

    It is asked for a package, and knows the devices of its default function alone.
    """

    @classmethod
    def load_from_path(cls, path: str, compute_units: ComputeUnit = ComputeUnit.ALL):
        os.write(1, b"E5RT: a line below Python\n")
        _suffer(_happens("plan", compute_units.name, Path(path).stem))
        plan = cls()
        program = _interpreter(path).program
        functions = {
            name: SimpleNamespace(
                block=SimpleNamespace(
                    operations=[
                        SimpleNamespace(operator_name=each.kind, planned=name == program.default)
                        for each in function.operations
                    ]
                )
            )
            for name, function in program.functions.items()
        }
        plan.model_structure = SimpleNamespace(program=SimpleNamespace(functions=functions))
        return plan

    def get_compute_device_usage_for_mlprogram_operation(self, operation):
        if not operation.planned:
            return None
        on_cpu = operation.operator_name == "softmax"
        device = MLCPUComputeDevice() if on_cpu else MLNeuralEngineComputeDevice()
        return SimpleNamespace(preferred_compute_device=device)

    def get_estimated_cost_for_mlprogram_operation(self, operation):
        return SimpleNamespace(weight=0.5) if operation.operator_name == "conv" else None


models = SimpleNamespace(
    CompiledMLModel=CompiledMLModel,
    utils=SimpleNamespace(compile_model=_compile_model),
    compute_plan=SimpleNamespace(MLComputePlan=MLComputePlan),
)
