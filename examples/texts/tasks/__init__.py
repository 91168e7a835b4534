"""The tasks: a module each, with the answers, how the causal model is asked, and how a text is written.

A module has `ANSWERS`; `CUE`, the words that the causal model's prompt ends with; `SECOND`, what the second text is, if
there is one; `SEEN`, the constructions that pretraining sees besides the plain one; and `write(rng, construction)`,
which returns a text, the second text or None, and the number of the answer. Construction 0 is plain; 1 to 6 are what
the models are fine-tuned and tested on.
"""

from types import ModuleType

from texts.tasks import agree, count, entail, review, role, topic

TASKS: dict[str, ModuleType] = {
    "review": review,
    "topic": topic,
    "agree": agree,
    "entail": entail,
    "role": role,
    "count": count,
}
REGRESSION = "count"  # its labels are numbers, those of all others classes
