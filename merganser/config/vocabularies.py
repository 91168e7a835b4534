"""Check the vocabularies of a `params.yaml`, and read one as the choice of a merge's tokenizer."""

from collections.abc import Iterator
from pathlib import Path

from merganser.checkpoints.vocabulary.plan import BASE, TokenizerChoice, check_model_names
from merganser.config.params import OWN_MODELS, VOCABULARIES, Params
from merganser.errors import InputError, did_you_mean


def vocabulary_mistakes(params: Params) -> Iterator[str]:
    """Check what names a vocabulary, and the models that vocabularies name."""
    name = params.vocabulary
    if name is not None and name not in params.vocabularies:
        yield f"base.source: no {name!r} under vocabularies{did_you_mean(name, params.vocabularies)}"
    for name, about in params.vocabularies.items():
        if name != params.vocabulary:
            yield f"vocabularies.{name}: nothing reads it; write base.source: {VOCABULARIES / name}"
        try:
            own = [] if Path(about.source) == OWN_MODELS else [BASE]
            check_model_names(choice_of(params, name), [*own, *params.tasks])
        except InputError as error:
            yield str(error)


def choice_of(params: Params, name: str) -> TokenizerChoice:
    """Return what a vocabulary says, as a choice of the merge's tokenizer."""
    about = params.vocabularies[name]
    return TokenizerChoice(about.tokenizer, about.rows, about.chat_template, section=f"vocabularies.{name}")
