"""What the suite draws: a function of its arguments, labelled rightly, with splits that share no face or row."""

import numpy as np
import pytest
from scipy import ndimage

from suite import glyphs, tasks
from suite.canvas import smooth_noise, to_pixels
from suite.data import pixel_hash
from suite.tasks import SPLITS, TASKS, armenian, counting, digits, landcover, street

SPLITS_OF_TASKS = [(task, split) for task in TASKS for split in SPLITS]


@pytest.mark.parametrize(("task", "split"), SPLITS_OF_TASKS)
def test_drawing_again_gives_the_same_pixels(task: str, split: str) -> None:
    first, second = (tasks.draw(task, split, seed=3, count=30) for _ in range(2))
    assert pixel_hash(*first) == pixel_hash(*second)
    assert first[0].shape == (30, 32, 32, 3)
    assert first[0].dtype == np.uint8


@pytest.mark.parametrize("task", TASKS)
def test_another_seed_or_split_gives_other_pixels(task: str) -> None:
    drawn = [(split, seed) for split in ("clean", "train") for seed in (0, 1)] + [("validation", 0), ("test", 0)]
    hashes = {pixel_hash(*tasks.draw(task, split, seed, count=30)) for split, seed in drawn}
    assert len(hashes) == len(drawn)


@pytest.mark.parametrize("subject", tasks.SUBJECTS)
def test_every_class_has_its_own_name_and_appears(subject: str) -> None:
    names = tasks.SUBJECTS[subject].CLASS_NAMES
    _, labels = tasks.draw(subject, "clean", seed=0, count=300)
    assert len(set(names)) == len(names)
    assert set(labels.tolist()) == set(range(len(names)))


def test_no_face_of_training_is_seen_in_validation_or_test() -> None:
    for fonts in (glyphs.FONTS, street.STYLE_FONTS, armenian.STYLE_FONTS):
        assert not set(fonts["train"]) & {*fonts["validation"], *fonts["test"]}
    assert not set(glyphs.FONTS["validation"]) & set(glyphs.FONTS["test"])


def test_no_handwritten_row_is_in_two_splits() -> None:
    rows = [index for part in digits.ROWS.values() for index in range(1797)[part]]
    assert sorted(rows) == list(range(1797))


def test_digits_has_at_most_its_own_rows_for_validation_and_test() -> None:
    assert len(tasks.draw("digits", "validation", seed=0, count=500)[0]) == 250
    assert len(tasks.draw("digits", "test", seed=0, count=1000)[0]) == 547
    assert len(tasks.draw("digits", "test", seed=0, count=20)[0]) == 20


@pytest.mark.parametrize("task", ["greek", "armenian"])
def test_a_letter_looks_like_the_letter_of_its_label(task: str) -> None:
    characters = TASKS[task].CHARACTERS
    images, labels = tasks.draw(task, "clean", seed=0, count=100)
    darkness = images.astype(float).mean(-1) * (-1 if task == "greek" else 1)
    shapes = [glyphs.warp(glyphs.glyph(c, "DejaVuSans"), 0, 1, 1, 0, 0, 0) for c in characters]
    scores = _standardised(darkness) @ _standardised(np.stack(shapes)).T
    assert (scores.argmax(1) == labels).mean() > 0.5  # one in twenty by chance


def _standardised(images: np.ndarray) -> np.ndarray:
    flat = np.stack([ndimage.gaussian_filter(image, 1.5) for image in images]).reshape(len(images), -1)
    flat = flat - flat.mean(1, keepdims=True)
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


def test_counting_shows_as_many_objects_as_its_label_says() -> None:
    images, labels = tasks.draw("counting", "clean", seed=0, count=60)
    words = dict(enumerate(["one", "two", "three", "four", "five", "six"], start=1))
    seen = [words[ndimage.label(image.mean(-1) > 140)[1]] for image in images]
    assert seen == [counting.CLASS_NAMES[label] for label in labels]


def test_water_is_blue_and_pasture_is_green() -> None:
    images, labels = tasks.draw("landcover", "clean", seed=0, count=100)
    for name, channel in (("water", 2), ("pasture", 1)):
        colours = images[labels == landcover.CLASS_NAMES.index(name)].mean((1, 2))
        assert (colours.argmax(1) == channel).all()


def test_an_unmoved_warp_halves_the_cell() -> None:
    cell = glyphs.glyph("A", "DejaVuSans")
    halved = np.asarray(cell, float).reshape(32, 2, 32, 2).mean((1, 3)) / 255
    unmoved = glyphs.warp(cell, turn=0, scale_x=1, scale_y=1, shear=0, shift_x=0, shift_y=0)
    np.testing.assert_allclose(unmoved, halved, atol=1 / 255)


def test_a_shift_moves_the_glyph_by_that_many_pixels() -> None:
    cell = glyphs.glyph("A", "DejaVuSans")
    here = glyphs.warp(cell, 0, 0.5, 0.5, 0, 0, 0)
    there = glyphs.warp(cell, 0, 0.5, 0.5, 0, 3, -2)
    np.testing.assert_allclose(np.roll(here, (-2, 3), axis=(0, 1)), there, atol=1 / 255)


def test_smooth_noise_stays_in_its_range_and_has_no_jumps() -> None:
    noise = smooth_noise(np.random.default_rng(0), count=5, cells=4, channels=2)
    assert noise.shape == (5, 32, 32, 2)
    assert noise.min() >= 0
    assert noise.max() <= 1
    assert np.abs(np.diff(noise, axis=1)).max() <= 1 / 8 + 1e-6  # a cell is eight pixels wide


def test_pixels_are_clipped_and_rounded() -> None:
    assert to_pixels(np.array([-1.0, 0.0, 0.5, 1.0, 2.0])).tolist() == [0, 0, 128, 255, 255]
