"""What is no operation of its own on a GPU."""

# Operations that only look at memory in another way.
VIEWS = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "device", "expand", "lift_fresh",
    "permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind",
    "unsqueeze", "view",
}  # fmt: skip
