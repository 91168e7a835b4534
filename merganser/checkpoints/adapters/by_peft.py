"""Let PEFT compute an adapter's changes to its base, one module at a time.

PEFT's tuner is applied to a model without values. If it needs the base's weights (DoRA, PiSSA), each module gets them
when it is read. So memory holds the adapter and one module at most.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from merganser.checkpoints.adapters.peft_settings import PeftKind
from merganser.checkpoints.adapters.settings import REMEDY
from merganser.checkpoints.adapters.stand_ins import Shapes, Watched, model_of, placed
from merganser.checkpoints.architecture import Architecture
from merganser.checkpoints.tensors import Checkpoint
from merganser.errors import InputError

NAME = "default"  # of the adapter, as PEFT calls a single one
ROOT = "base_model.model."  # what PEFT puts before the model's own names
SPARE = 2**24  # entries of a tensor that any adapter may make
ONE_AT_A_TIME = Lock()  # PEFT takes torch's random numbers, which all threads share


class Holder(nn.Module):
    """Holds a tuner like a PeftModel, so that tensors have the same names."""

    def __init__(self, tuner: nn.Module, config: Any) -> None:
        super().__init__()
        self.base_model = tuner
        self.peft_config = {NAME: config}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)


@dataclass
class ByPeft:
    """An adapter of any kind, and the modules that it changes."""

    path: Path
    kind: PeftKind
    tensors: Checkpoint
    keys: Mapping[str, str]  # the module that each tensor is of; "": of all
    base: Checkpoint  # as its file has it
    sources: Mapping[str, Mapping[str, str]]  # by module and its parameter's own name: that in the base
    whole: Mapping[tuple[str, str], str]  # tensors that take the place of a parameter before the adapter is put on it
    architecture: Architecture
    changed: frozenset[tuple[str, str]] = frozenset()  # modules and parameters that may change
    last: tuple[str, dict[str, Tensor]] | None = None

    def delta(self, module: str, parameter: str) -> Tensor:
        """Return the adapter's change of a base's parameter in float32, in the layout of the base's file."""
        with ONE_AT_A_TIME:
            if self.last is None or self.last[0] != module:
                self.last = module, self._deltas(module, self.put_on)
            return self.last[1][parameter]

    def check(self) -> None:
        """Apply the adapter; raise InputError if PEFT cannot, or if it computes other values each time."""
        with ONE_AT_A_TIME:
            first = next(iter(self.sources))
            one, two = self._deltas(first, self.put_on), self._deltas(first, PutOn(self, seed=1))
            if not all(torch.allclose(one[name], two[name], rtol=1e-4, atol=1e-6) for name in one):
                raise InputError(f"{self.path}: {self.kind.name}: PEFT makes other weights of it each time it loads it")

    @cached_property
    def shapes(self) -> Shapes:
        """Return the shapes of each module's parameters in the base's file."""
        return {
            module: {own: self.base.spec(name).shape for own, name in sources.items()}
            for module, sources in self.sources.items()
        }

    @cached_property
    def put_on(self) -> "PutOn":
        """Return the tuner, applied to a model without values."""
        return PutOn(self, seed=0)

    @property
    def embeddings(self) -> set[str]:
        """Return the embedding modules, by the names of their tensors."""
        return {module for key, module in self.keys.items() if "lora_embedding_" in key}

    @property
    def wrapped(self) -> set[str]:
        """Return the modules with adapted parameters."""
        return {module for module in self.sources if self.kind.wrapping.parameters(module)}

    def _deltas(self, module: str, put_on: "PutOn") -> dict[str, Tensor]:
        given = {own: self.base.read(name).to(torch.float32) for own, name in self.sources[module].items()}
        start = given | {own: self._read(key) for (of, own), key in self.whole.items() if of == module and own in given}
        with self.refusing(module):
            merged = put_on.merged(module, start)
        for own, value in merged.items():
            if value.shape != given[own].shape:
                raise InputError(f"{self.path}: {module}.{own} would get another shape, {list(value.shape)}")
        deltas = {own: value.to(torch.float32) - given[own] for own, value in merged.items()}
        others = [own for own, delta in deltas.items() if (module, own) not in self.changed and delta.any()]
        if others:
            raise InputError(f"{self.path}: PEFT changes {module}.{others[0]} too; {REMEDY}")
        return deltas

    def _read(self, key: str) -> Tensor:
        return self.tensors.read(key).to(torch.float32)

    @contextmanager
    def refusing(self, where: str) -> Iterator[None]:
        """Raise InputError in PEFT's words if it fails in the block; torch's random state stays as it was."""
        try:
            with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
                warnings.simplefilter("ignore")
                yield
        except InputError:
            raise
        except NotImplementedError as error:
            raise InputError(
                f"{self.path}: {where}: PEFT cannot merge an adapter of this kind; leave it out"
            ) from error
        except Exception as error:  # PEFT and torch raise many kinds
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise InputError(f"{self.path}: {where}: PEFT cannot put it on this base: {said}") from error


class PutOn:
    """PEFT's tuner on a model without values; `one_by_one`: its layers are built when they are merged."""

    def __init__(self, of: ByPeft, seed: int) -> None:
        self.of, self.seed = of, seed
        self.calls: dict[str, list[tuple[Any, Any]]] = {}
        self.value = torch.zeros(1)
        self.one_by_one = False
        with of.refusing("the adapter"):
            torch.manual_seed(seed)
            self.one_by_one = not self._make()
            if self.one_by_one and not self._make():
                together = f"PEFT reads the weights of all layers together to load a {of.kind.name}"
                raise InputError(f"{of.path}: {together}, which is not done here; {REMEDY}")
            if not self.one_by_one:
                self._load(of.keys)

    @property
    def limit(self) -> int:
        """Return the largest number of entries of one of the adapter's tensors."""
        largest = max((prod(shape) for module in self.of.shapes.values() for shape in module.values()), default=0)
        held = max((prod(self.of.tensors.spec(key).shape) for key in self.of.keys), default=0)
        return 2 * max(largest, held) + SPARE

    def _make(self) -> bool:
        """Apply the tuner to a model without values; tell whether it needs no values."""
        of = self.of
        self.calls.clear()
        self.model, known = model_of(of.shapes, of.architecture, of.embeddings)
        of.kind.check_order(of.path, known)
        for module, shapes in of.shapes.items():
            for own, shape in shapes.items():
                value = nn.Parameter(self.value.expand(*shape), requires_grad=False)  # one value takes no memory
                self.model.get_submodule(module).register_parameter(own, value)
        config, watched = of.kind.config(sorted(of.sources.keys() - of.wrapped)), Watched(self.value, self.limit)
        try:
            with watched:
                tuner = self._tuner()(self.model, {NAME: config}, NAME)
        except Exception:  # PEFT may put another one around what says that values are wanted
            if watched.wanted:
                return False
            raise
        self.holder = Holder(tuner, config).eval()
        return True

    def _tuner(self) -> Any:
        """Return PEFT's tuner, which finds the modules that have tensors in the adapter."""
        calls, later = self.calls, self.one_by_one
        modules = frozenset(self.of.sources) - self.of.wrapped

        class Tuner(self.of.kind.tuner):  # type: ignore[name-defined]
            @staticmethod
            def _check_target_module_exists(peft_config: Any, key: str) -> bool:
                return key in modules

            def _create_and_replace(self, *args: Any, **kwargs: Any) -> None:
                parameter = kwargs.get("parameter_name")
                module = kwargs["current_key"].removesuffix(f".{parameter}" if parameter else "")
                calls.setdefault(module, []).append((args, kwargs))
                if not later:
                    super()._create_and_replace(*args, **kwargs)

        return Tuner

    def _load(self, keys: Mapping[str, str]) -> None:
        """Load some of the adapter's tensors; raise InputError if PEFT would skip one of them."""
        from peft import set_peft_model_state_dict

        state = {key: self.of.tensors.read(key) for key in keys}
        loaded: Any = set_peft_model_state_dict(self.holder, state, NAME)
        # while layers are built one by one, tensors outside them may be shared by others
        unused = [key for key in loaded.unexpected_keys if key.startswith(ROOT) or not self.one_by_one]
        if unused:
            raise InputError(f"{self.of.path}: PEFT leaves out {unused[0]}; save the adapter again, or upgrade PEFT")
        missing = [key for key in loaded.missing_keys if self._is_of_adapter(key, loaded.missing_keys)]
        if missing:
            raise InputError(f"{self.of.path}: it has no {missing[0]}; save the adapter again")

    def _is_of_adapter(self, key: str, missing: list[str]) -> bool:
        """Tell whether PEFT should have loaded a tensor, which is no second name of a loaded one."""
        if not (self.of.kind.prefix in key and f".{NAME}" in key):
            return False
        held = self.holder.state_dict(keep_vars=True)
        others = {tensor.data_ptr() for name, tensor in held.items() if name not in missing and tensor.numel()}
        return key in held and held[key].data_ptr() not in others

    def merged(self, module: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a module's parameters with the adapter merged into these values."""
        if module not in self.calls:
            raise InputError(f"{self.of.path}: {module} is not among the modules that its configuration targets")
        torch.manual_seed(self.seed)
        return self._merged_now(module, values) if self.one_by_one else self._merged(module, values)

    def _merged(self, module: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        layer: Any = self.model.get_submodule(module)
        with placed(layer.get_base_layer(), {name: value.clone() for name, value in values.items()}):
            return _values(_merge(layer), values)

    def _merged_now(self, module: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Apply the adapter to one module with values, and remove it again."""
        parent, _, name = module.rpartition(".")
        tuner: Any = self.holder.base_model
        above, plain = self.model.get_submodule(parent), self.model.get_submodule(module)
        with placed(plain, {own: value.clone() for own, value in values.items()}):
            try:
                with Watched(None, self.limit):
                    for args, kwargs in self.calls[module]:
                        config, adapter, _, *others = args
                        target = above.get_submodule(name)
                        self.of.kind.tuner._create_and_replace(tuner, config, adapter, target, *others, **kwargs)
                layer = above.get_submodule(name)
                layer.eval()
                self._load({key: of for key, of in self.of.keys.items() if of in (module, "")})
                return _values(_merge(layer), values)
            finally:
                above.add_module(name, plain)


def _merge(layer: Any) -> nn.Module:
    """Merge a layer as PEFT's merge_and_unload does, and return the resulting module; the layer can merge again."""
    if hasattr(layer, "unload_and_optionally_merge_module"):
        left = layer.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    else:
        layer.merge(safe_merge=False, adapter_names=None)
        left = layer.get_base_layer()
    while hasattr(layer, "merged_adapters"):
        layer.merged_adapters.clear()
        layer = layer.base_layer
    return left


def _values(module: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parameters = dict(module.named_parameters(recurse=False))
    return {name: parameters[name].detach().clone() for name in values}
