"""Questions whose answer is a part of a text: the likeliest part against the right answers.

A long text is read in windows. Shape legend: N questions, F windows, L tokens, W the largest number of windows.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from merganser.errors import InputError
from merganser.evaluation import KindSettings
from merganser.evaluation.columns import RENAMED, WORDS, check_column, check_complete, type_of
from merganser.evaluation.examples import Results, compare_texts
from merganser.evaluation.kinds.regression import classes
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.texts import pack, unpack
from merganser.models import FindsAnswers, Network, TakesTexts

METRICS = ("squad_f1", "squad_exact_match")
NEEDS = (TakesTexts, FindsAnswers)
PIPELINE = "question-answering"  # of the families that score it
TOKENS = 384
QUESTION, CONTEXT, ANSWERS = "question", "context", "answers"
WINDOW, SPANS, OF = "window_", "window_spans", "window_of"
NOTHING = -torch.inf

__all__ = ["METRICS", "NEEDS", "TOKENS", "Settings", "classes"]


class Settings(KindSettings):
    """The most tokens of a question with a window of its text, and how many of them windows share; the longest answer.

    `unanswerable: allow` takes questions without an answer, as SQuAD 2 has them: none is right, and it is given where
    the score of the first token, which stands for it, is the highest.
    """

    max_length: Annotated[int, Field(ge=8, le=2**17)] = 384
    stride: Annotated[int, Field(ge=0)] = 128
    max_answer_tokens: Annotated[int, Field(ge=1)] = 30
    unanswerable: Literal["refuse", "allow"] = "refuse"


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set without texts in `question` and `context`, or without lists of texts in `answers`."""
    for split, rows in splits.items():
        for column in (QUESTION, CONTEXT, ANSWERS):
            check_column(rows, column, f"{source}: split {split}", RENAMED)
        for column in (QUESTION, CONTEXT):
            if (held := type_of(rows.features[column])) not in WORDS:
                raise InputError(f"{source}: split {split}: the column {column!r} holds {held}, not texts")
        answers = rows.features[ANSWERS]
        listed = answers.get("text") if isinstance(answers, Mapping) else answers
        if type_of(getattr(listed, "feature", None)) not in WORDS:
            wanted = "lists of texts, nor SQuAD's mapping that has them as `text`"
            raise InputError(f"{source}: split {split}: the column {ANSWERS!r} holds neither {wanted}")


def columns(settings: Settings) -> Collection[str] | None:
    """Name the columns that are read."""
    return (QUESTION, CONTEXT, ANSWERS)


def outputs(classes: Sequence[str], settings: Settings) -> int:
    """Return two: a token's scores as the first and the last of the answer."""
    return 2


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Yield each question's first window under the network's input names, all windows, the text and the answers.

    Windows lie N by W, one after another; `window_of` has each one's question, -1 for none.
    """
    assert isinstance(network, FindsAnswers)
    assert isinstance(network, TakesTexts)
    check_complete(rows, [QUESTION, CONTEXT])
    given = [_texts_of(each) for each in rows[ANSWERS]]
    for number, answers in enumerate(given):
        if not answers and settings.unanswerable == "refuse":
            raise InputError(f"example {number} has no answer; `unanswerable: allow` counts none as the right one")
        if None in answers:
            raise InputError(f"example {number} has an empty value among its answers; leave it out")
    questions, contexts = [text.lstrip() for text in rows[QUESTION]], list(rows[CONTEXT])
    inputs, spans, of = network.encode_windows(questions, contexts, settings.max_length, settings.stride)
    if settings.unanswerable == "allow" and {*inputs["input_ids"][:, 0].tolist()} != {network.tokenizer.cls_token_id}:
        reason = "data.unanswerable: the model's texts do not begin with a token whose score stands for no answer"
        raise InputError(f"{reason} ([CLS]); leave out the questions without an answer")
    first = [window for window, number in enumerate(of) if not window or of[window - 1] != number]
    count = len(questions)
    kept = {name: values.to(torch.int32) for name, values in inputs.items()}
    yield (
        {name: values[first] for name, values in kept.items()}
        | {f"{WINDOW}{name}": _laid_out(values, count, 0) for name, values in kept.items()}
        | {SPANS: _laid_out(spans, count, -1), OF: _laid_out(torch.tensor(of, dtype=torch.int32), count, -1)}
        | {CONTEXT: pack(contexts), ANSWERS: pack([json.dumps(answers) for answers in given])}
    )


def _texts_of(answers: Any) -> list[str]:
    return list((answers["text"] if isinstance(answers, Mapping) else answers) or ())


def _laid_out(values: Tensor, count: int, padding: int) -> Tensor:
    """Lay F windows (F, ...) out as (N, W, ...), with padding at the end."""
    missing = -len(values) % count
    return pad(values, (*(0,) * (2 * values.dim() - 1), missing), value=padding).unflatten(0, (count, -1))


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Compare the likeliest part of each text with the answers."""
    assert isinstance(network, TakesTexts)
    names: Sequence[str] = network.tokenizer.model_input_names
    laid = prepared.array(OF).flatten()
    there = (laid >= 0).nonzero()[:, 0]
    windows = {name: prepared.array(f"{WINDOW}{name}").flatten(0, 1)[there] for name in names}
    spans, of = prepared.array(SPANS).flatten(0, 1)[there], laid[there].tolist()
    best_answers: list[tuple[float, float, int, int]] = [(NOTHING, torch.inf, 0, 0)] * len(prepared)
    order = windows["attention_mask"].sum(dim=1).argsort(descending=True, stable=True)
    for rows in order.split(batch_size):
        scores = network.logits({name: values[rows] for name, values in windows.items()}).float().cpu()
        for window, best in zip(rows.tolist(), likeliest(scores, spans[rows], settings.max_answer_tokens), strict=True):
            best_answers[of[window]] = _better(best_answers[of[window]], best)
    allowed = settings.unanswerable == "allow"
    texts = [
        "" if allowed and none > score else text[first:stop]
        for (score, none, first, stop), text in zip(best_answers, unpack(prepared.array(CONTEXT)), strict=True)
    ]
    right = [json.loads(answers) or [""] for answers in unpack(prepared.array(ANSWERS))]
    return compare_texts(metric, texts, right)


Likeliest = tuple[float, float, int, int]  # the score, that of no answer, and the characters from and to which it goes


def _better(one: Likeliest, other: Likeliest) -> Likeliest:
    """Return the likelier of two windows' answers, with the lower of their scores for no answer."""
    best = one if one[0] >= other[0] else other
    return best[0], min(one[1], other[1]), *best[2:]


def likeliest(scores: Tensor, spans: Tensor, most: int) -> list[Likeliest]:
    """Return each window's part (F, L, 2) of at most so many tokens with the highest sum of scores."""
    shown = spans[..., 0] >= 0
    first, last = (scores[..., side].masked_fill(~shown, NOTHING) for side in (0, 1))
    length = scores.shape[1]
    sums = torch.stack(
        [pad(first[:, : length - more] + last[:, more:], (0, more), value=NOTHING) for more in range(min(most, length))]
    )  # by the number of further tokens, window and first token
    best, place = sums.permute(1, 2, 0).flatten(1).max(dim=1)
    starts, further = place // len(sums), place % len(sums)
    none = scores[:, 0].sum(dim=1)
    rows = torch.arange(len(scores))
    characters = spans[rows, starts, 0], spans[rows, starts + further, 1]
    return list(zip(best.tolist(), none.tolist(), *(each.tolist() for each in characters), strict=True))
