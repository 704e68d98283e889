"""What there is to see of datasets, read from files only; pages and API show it, and this knows of neither.

    listing     which datasets and versions there are; `Datasets`, where all of it begins
    chosen      one of them that somebody asked for
    summaries   what a manifest says, in short
    details     all that is known of one dataset
    lengths     how long its documents are
    tokens      ids as pieces of text
    documents   one document, and one sample as Megatron trains on it, some tokens at a time
    orders      which tokens a sample is made of
    origins     where a document came from
    rejects     records that became no documents, some at a time
    viewer      all of it in one object
    kept        what was found out, for as long as the files are the same
    answers     the shapes of all of it

Whatever is asked for is looked up among what is there: no path is made of what somebody wrote. Files that are reached
through a link that leads out of the output are not shown.
"""
