"""Front doors for other tools' command lines.

flags       Megatron's preprocess_data, as NVIDIA, ROCm and Megatron-DeepSpeed spell it -> Asked
policies    what that and other tools write around the tokens, by name
preprocess  Asked -> runs of our own pipeline -> the files that tool would have written
sentences   the same for texts that are cut into sentences
"""
