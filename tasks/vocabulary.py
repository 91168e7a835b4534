"""Extend the base to the merge's vocabulary: rows of embeddings and heads are matched by token."""

import tempfile
from pathlib import Path

from merganser.checkpoints.companions import copy_companions
from merganser.checkpoints.mean import write_mean
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.views import stored_specs
from merganser.checkpoints.vocabulary.plan import in_one_vocabulary
from merganser.checkpoints.vocabulary.writing import VOCABULARY, write_models
from merganser.checkpoints.writing import shards_like, write_model
from merganser.config.params import Params
from merganser.config.sections import OWN_MODELS
from merganser.config.tasks import choice_of
from merganser.outputs import fresh_folder
from merganser.sources.fetching import fetch_checkpoint, write_source_description
from merganser.sources.installing import set_padding
from merganser.sources.pointers import read_pointer
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import CHECKPOINTS, VOCABULARIES


def write_in_vocabulary(params: Params, name: str, out: Path) -> list[str]:
    """Write the base, or the models' mean, in a vocabulary; return notes for the user."""
    source = Path(params.vocabularies[name].source)
    models = {task: CHECKPOINTS / task for task in params.tasks}
    with tempfile.TemporaryDirectory(prefix="merganser-") as made, fresh_folder(out) as folder:
        fetched = None if source == OWN_MODELS else Path(made) / "fetched"
        if fetched:
            fetched.mkdir()
            fetch_checkpoint(source, fetched)
        plan = in_one_vocabulary(fetched, models, choice_of(params, name))
        base, written = write_models(plan, Path(made) / "written")
        if base is None:
            write_mean(written, folder, params.base.heads)
        else:
            checkpoint = open_checkpoint(base)
            tensors = ((each, checkpoint.read(each)) for each in checkpoint.names)
            write_model(folder, stored_specs(checkpoint), tensors, shards_like(checkpoint))
            copy_companions(base, folder)
        if params.base.pad_token_id is not None:
            set_padding(folder, params.base.pad_token_id)
        said = {VOCABULARY: {"tokenizer": plan.choice.tokenizer, "rows": dict(plan.choice.rows)}}
        pointer, mean_of = (read_pointer(source), []) if fetched else (None, sorted(models))
        write_source_description(source, pointer, folder, mean_of, said)
        return [*plan.notes()]


@stage("vocabularies")
def main(params: Params, name: str) -> None:
    """Write the base in the vocabulary named on the command line."""
    print(*write_in_vocabulary(params, name, VOCABULARIES / name), sep="\n")


if __name__ == "__main__":
    run_main(main)
