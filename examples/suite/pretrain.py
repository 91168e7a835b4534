"""The `pretrain` stage: the text tower first, then the image tower against the locked text."""

import math
from dataclasses import dataclass
from pathlib import Path

import open_clip
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW

from common.training import Trainer, pretraining_optimisers
from suite.model import Tokenizer, new_model, normalise, prompts, save_weights, text_features
from suite.settings import Pretraining
from suite.tasks import PRETRAINING_ONLY, SUBJECTS, TASKS, draw

TEXT_SCALE = 14.3
STYLED_SEED_OFFSET = 1000  # keeps pretraining's draws apart from the tasks' own train splits
REPORT_EVERY = 100


def pretrain(seed: int, settings: Pretraining, out: Path) -> None:
    """Train the base model and write it to `out`."""
    model, tokenizer = new_model(seed)
    tokens = concept_tokens(tokenizer)
    train_text_tower(model, tokens, seed, settings.text_steps)
    train_image_tower(model, tokens, draw_pool(seed, settings), seed, settings)
    save_weights(model.state_dict(), out)


def concept_tokens(tokenizer: Tokenizer) -> list[Tensor]:
    """Return the tokens of each concept's prompts; the concepts are the classes of all subjects, in their order."""
    return [
        tokenizer(of_class)
        for subject in SUBJECTS.values()
        for of_class in prompts(subject.CLASS_NAMES, subject.TEMPLATES)
    ]


def train_text_tower(model: open_clip.CLIP, tokens: list[Tensor], seed: int, steps: int) -> None:
    """Make two prompts of one concept attract and those of different concepts repel."""
    generator = torch.Generator().manual_seed(seed + 7)
    trained = [
        weight for name, weight in model.named_parameters() if not name.startswith("visual.") and name != "logit_scale"
    ]
    trainer = Trainer([AdamW(trained, lr=2e-3, weight_decay=0.01, betas=(0.9, 0.98))], trained, steps, warm_up=10)
    model.train()
    target = torch.arange(len(tokens))
    for step in range(steps):
        pair = torch.cat([_one_prompt_each(tokens, generator), _one_prompt_each(tokens, generator)])
        first, second = model.encode_text(pair, normalize=True).chunk(2)
        logits = TEXT_SCALE * first @ second.T
        trainer.step(step, functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target))


def _one_prompt_each(tokens: list[Tensor], generator: torch.Generator) -> Tensor:
    return torch.stack([prompt[int(torch.randint(len(prompt), (1,), generator=generator))] for prompt in tokens])


@dataclass(frozen=True)
class Pool:
    """The images of the second phase (normalised) and the index of each one's concept."""

    images: Tensor
    concepts: Tensor


def draw_pool(seed: int, settings: Pretraining) -> Pool:
    """Draw every subject in the clean style and every task but digits in its own.

    Of the tasks' own style only even classes are shown: the features become good and the zero-shot accuracy stays low.
    """
    images, concepts, offset = [], [], 0
    for name, subject in SUBJECTS.items():
        pixels, labels = draw(name, "clean", seed, settings.clean_images)
        images.append(normalise(pixels))
        concepts.append(torch.from_numpy(labels) + offset)
        if name not in PRETRAINING_ONLY and subject is not TASKS["digits"] and settings.styled_images:
            pixels, labels = draw(name, "train", seed + STYLED_SEED_OFFSET, settings.styled_images)
            even = labels % 2 == 0
            images.append(normalise(pixels[even]))
            concepts.append(torch.from_numpy(labels[even]) + offset)
        offset += len(subject.CLASS_NAMES)
    return Pool(torch.cat(images), torch.cat(concepts))


def train_image_tower(
    model: open_clip.CLIP, tokens: list[Tensor], pool: Pool, seed: int, settings: Pretraining
) -> None:
    """Classify images among all concepts, whose text features stay as they are."""
    targets = text_features(model, tokens)
    trained = dict(model.visual.named_parameters()) | {"logit_scale": model.logit_scale}
    optimisers = pretraining_optimisers(trained, blocks="resblocks")
    trainer = Trainer(optimisers, trained.values(), settings.image_steps, warm_up=50)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for step in range(settings.image_steps):
        batch = torch.randint(len(pool.images), (settings.batch_size,), generator=generator)
        features = model.encode_image(pool.images[batch], normalize=True)
        loss = functional.cross_entropy(model.logit_scale.exp() * features @ targets.T, pool.concepts[batch])
        trainer.step(step, loss)
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        if (step + 1) % REPORT_EVERY == 0:
            print(f"pretrain: step {step + 1} of {settings.image_steps}, loss {loss.item():.3f}", flush=True)
