"""Are the GPUs available, healthy, alike and free?

The facts come from nvidia-smi, the PCI bus and the kernel log. What a GPU or a driver does not report is not
judged.
"""
