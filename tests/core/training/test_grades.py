"""Grades of labels, in equal steps."""

import numpy as np

from posbias.core.training.layout import grade_labels


def test_a_label_that_lies_on_a_step_has_reached_it_however_it_was_rounded() -> None:
    steps = np.arange(10)
    for top in (0.7, 1 / 3, 1.1, 0.3):
        label = steps * top / 10
        for rounded in (np.nextafter(label, 0), label, np.nextafter(label, 1)):
            assert grade_labels(rounded, top, 10).tolist() == steps.tolist()
    assert grade_labels(np.array([0.0, 0.0999, 0.11, 2.0]), 1.0, 10).tolist() == [0, 0, 1, 9]
