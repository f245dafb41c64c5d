"""What train_fsdp.py and train_deepspeed.py share: the model, the data, the loop around an engine's step."""
