import torch

# One thread suits models this small, and two test runs beside each other.
torch.set_num_threads(1)
