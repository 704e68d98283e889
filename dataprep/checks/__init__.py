"""What can be wrong with a ``.bin``/``.idx`` pair, and how it is found. `stages.verify` puts it together.

rules      every problem that has a name: how bad, what a training does with it, what mends it
report     what was found out about one pair, and what a training expects of it
header     the first 34 bytes, and what other formats begin with
index      level `index`: lengths, pointers, boundaries, sizes; `causes`: why they are wrong
documents  where documents begin, token by token
known      which ids there may be: from the request, the tokenizer, the manifest
tokens     level `tokens`; `scan` reads, `tally` counts, `ends` judges how documents end and begin
splits     what Megatron's --split leaves without tokens
caches     Megatron's index caches; `orders` holds them to what it would write now, `npy` reads them
claims     what a manifest says of the files
"""
