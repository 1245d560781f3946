"""The private names of Gradio that are used here: each is still where it was."""

from operator import attrgetter

import gradio as gr
from gradio.routes import App

from specdemo.ui.page.api import PRIVATE


def test_gradio_still_has_each():
    with gr.Blocks() as demo:
        gr.api(lambda: 1, api_name="one")
    demo.queue()
    named = {"Blocks": demo, "App": App.create_app(demo, mcp_server=False)} | vars(gr.context)
    for path in PRIVATE:
        root, _, rest = path.partition(".")
        attrgetter(rest)(named[root])
