"""The page's controls as Gradio components."""

from pathlib import Path

import gradio as gr
import pytest

from specdemo import ui
from specdemo.ui.page.controls import controls
from specdemo.ui.runs.models import Models


def test_a_slider_takes_a_number_beyond_its_ends_and_others_in_the_process_do_not():
    """So that Params can refuse it in a sentence, also after an update, for which Gradio makes a new one."""
    with gr.Blocks():
        slider = controls(Models({"device": "cpu"}))["gamma"]
        others = gr.Slider(1, 16)
    updated = type(slider)(**slider.constructor_args, render=False)
    assert slider.preprocess(99) == updated.preprocess(99) == 99
    with pytest.raises(gr.Error):
        others.preprocess(99)
    assert slider.get_block_name() == "slider", "by which the browser finds what draws it"
    assert slider.component_class_id == others.component_class_id
    assert not [*Path(ui.__file__).parent.glob("*.pyi")]
