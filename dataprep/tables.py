"""What the command line shows of plain values: lines of text, nothing computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataprep.meters import RunState, counts, line, short_number, short_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def plan(result: dict[str, Any]) -> Iterator[str]:
    """What `dataprep.plan` gives."""
    recipe, tokenizer, policy = result["recipe"], result["recipe"]["tokenizer"], result["recipe"]["policy"]
    return table(
        {
            "corpus": f"{recipe['corpus']}: {result['num_files']:,} files, {result['num_bytes']:,} bytes",
            "tokenizer": f"{tokenizer['name']}: {tokenizer['type']}, "
            f"{tokenizer['vocab_size']:,} ids, {result['dtype']}",
            "document": f"{result['bos'] or '(no BOS)'} text {result['eod'] or '(no EOD)'}; "
            f"special strings: {policy['special_text']}; empty documents: {policy['empty']}",
            "text": "all of each file"
            if recipe["files"][0]["format"] == "text"
            else f"column {recipe['reader']['text']}",
            **_outlook(result),
            "recipe": result["recipe_digest"],
            "prefix": result["prefix"] + (" (exists)" if result["exists"] else ""),
        }
    )


def _outlook(plan: dict[str, Any]) -> dict[str, str]:
    """What there is to do, and what it will take."""
    rows = {}
    if plan["num_units"] is not None:
        rows["units"] = f"{plan['num_units']:,} for {plan['runtime']['workers']} workers"
    if plan["recipe"]["origin"]:
        rows["from"] = f"{plan['recipe']['origin']}  ({plan['recipe']['license'] or 'no licence stated'})"
        left = plan["num_bytes"] - plan["num_bytes_here"]
        rows["to fetch"] = f"{left / 1e9:,.2f} GB; {plan['num_bytes_here'] / 1e9:,.2f} GB are here"
    if plan["texts"]:
        rows["texts"] = f"one by one from {plan['texts']}"
    if plan["estimate"]:
        guess = plan["estimate"]
        rows["tokens"] = f"about {short_number(guess['tokens'])} of {short_number(guess['text_bytes'])}B of text"
        disk, in_the_end = short_number(guess["disk_bytes"]), short_number(guess["dataset_bytes"])
        rows["disk"] = f"about {disk}B while it runs, {in_the_end}B in the end"
        fetching = f"{short_time(guess['fetch_seconds'])} to fetch at 1 Gbit/s, " if guess["fetch_seconds"] else ""
        work = f"{short_time(guess['tokenize_seconds'])} to tokenize with {plan['runtime']['workers']} workers"
        rows["time"] = f"about {fetching}{work}"
    return rows


def corpora(found: list[dict[str, Any]]) -> Iterable[str]:
    """One line for each corpus: name, size, text, gated, licence, what it is; and one for its subsets."""
    yield f"{'name':<13} {'size':>8}  {'text':<8} {'':<6} {'licence':<22} description"
    for entry in found:
        size = f"{short_number(entry['size'])}B" if entry["size"] else "?"
        gated = "gated" if entry["gated"] else ""
        yield (
            f"{entry['name']:<13} {size:>8}  {entry['text'] or '-':<8} {gated:<6} {entry['license'] or '?':<22} "
            f"{entry['description']}"
        )
        if entry["subsets"]:
            yield f"{'':<13} {'':>8}  {'mixes' if 'mixture' in entry else 'subsets'}: {', '.join(entry['subsets'])}"


def tokenizers(found: list[dict[str, Any]]) -> Iterable[str]:
    """One line for each tokenizer: name, gated, licence, what it is."""
    for entry in found:
        gated = "gated" if entry["gated"] else ""
        yield f"{entry['name']:<16} {gated:<6} {entry['license']:<25} {entry['description']}"


def status(found: list[dict[str, Any]]) -> Iterable[str]:
    """One line for each run in an output folder.

    Times are those that the driver's clock said, never ages: no two clocks agree.
    """
    for entry in found:
        if "corpus" not in entry:
            yield f"{entry['work']}  {entry['state']}: {entry['detail']}"
            continue
        parts = [f"{entry['corpus']}-{entry['tokenizer']}", entry["state"], _done(entry)]
        if entry["holder"]:
            parts.append(f"by {entry['holder']}")
        if entry["progress"] and not entry["prefix"]:
            seen = entry["progress"]
            wrote = "updated" if entry["holder"] else f"process {seen['pid']} on {seen['host']} last wrote"
            parts.append(f"{wrote} {_clock(seen['updated'])}")
        if entry["state"] == "failed" and entry["last_event"].get("error"):
            parts.append(f"error: {entry['last_event']['error']}")
        if entry["prefix"]:
            parts.append(entry["prefix"])
        yield "  ".join(parts)


def jobs(found: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each job: its name, how it is, when it runs next, how its last run went."""
    width = max((len(entry["name"]) for entry in found), default=0)
    for entry in found:
        if "error" in entry:
            yield f"{entry['name']:<{width}}  wrong    {entry['error']}"
            continue
        parts = [f"{entry['name']:<{width}}", f"{entry['state']:<7}"]
        if entry["next"] and not entry["paused"]:
            parts.append(f"next {_clock(entry['next'][0])}")
        if entry["last"]:
            parts.append(f"last {_ended(entry['last'])}")
        yield "  ".join(parts)


def job(entry: dict[str, Any], runs: list[dict[str, Any]]) -> Iterator[str]:
    """What `summaries.summary` gives of a job, and its newest runs."""
    version, stopped = entry["version"], entry["paused"]
    when = f"{entry['schedule']}  in {entry['time_zone']}" if entry["schedule"] else "only by hand"
    rows = {
        "job": f"{entry['name']}: {entry['state']}",
        "corpus": "  ".join(entry["corpus"]),
        "tokenizer": entry["tokenizer"],
        "schedule": when,
        "next": ", ".join(_clock(slot) for slot in entry["next"]),
        "paused": f"since {_clock(stopped['since'])} by {stopped['who']} {stopped['why']}".strip() if stopped else "",
        "dataset": entry["dataset"],
        "version": f"v{version['number']:06d}, {_counted(version)}" if version else "there is none yet",
    }
    yield from table({name: text for name, text in rows.items() if text})
    if runs:
        yield "runs"
        yield from (f"  {line}" for line in history(runs))


def history(records: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each run of jobs."""
    for record in records:
        what = "hand" if record["slot"] is None else f"{record['trigger']} for {_clock(record['slot'])}"
        attempt = f", attempt {record['attempt']}" if record["attempt"] > 1 else ""
        number = f"run {record['run']}" if record["run"] else "no run"
        yield f"{_clock(record['started'])}  {record['job']}  {number}  {what}{attempt}  {ended(record)}"


def ended(record: dict[str, Any]) -> str:
    """How a run of a job is, or was."""
    said = record["state"]
    if record["version"] is not None:
        said += f" v{record['version']:06d}, {_counted(record)} new"
    if record["files_waiting"]:
        said += f", {record['files_waiting']:,} files may still be written to"
    if record["holder"]:
        said += f": {record['holder']} is at work"
    if record["error"]:
        said += f": {record['error']}"
    return f"{said}; again {_clock(record['retry_at'])}" if record["retry_at"] else said


def _ended(record: dict[str, Any]) -> str:
    version = f" v{record['version']:06d}" if record["version"] is not None else ""
    return f"{record['state']}{version} {_clock(record['ended'] or record['started'])}"


def _counted(value: dict[str, Any]) -> str:
    return f"{value['num_documents']:,} documents, {value['num_tokens']:,} tokens"


def _done(entry: dict[str, Any]) -> str:
    """What a run did and, if it goes on, how it gets on."""
    units = f"{entry['units_done']:,} of {entry['units']:,} units"
    if entry["files_to_fetch"] and not entry["prefix"]:
        units += f", {entry['files_here']:,} of {entry['files_to_fetch']:,} files here"
    if entry["progress"] is None:
        return units
    figures = RunState.model_validate(entry["progress"])
    if entry["holder"] and figures.state == "running":
        of_stage = figures.model_copy(update={"units": 0, "workers": figures.workers if figures.workers > 1 else 0})
        return f"{units}, {figures.stage}: {line(of_stage)}" if figures.stage else units
    counted = {"units": 0, "workers": 0, "text_bytes_per_second": None, "fetched_bytes": 0, "fetch_bytes": 0}
    said = counts(figures.model_copy(update=counted))
    return f"{units}, {said}" if said else units


def _clock(text: str) -> str:
    """``2026-11-21T12:03:04+00:00`` as people write it."""
    return text.replace("T", " ").replace("+00:00", " UTC")


def examination(value: dict[str, Any]) -> Iterator[str]:
    """What `doctor.examine` gives."""
    kind = value["file_system"] or "file system unknown"
    yield f"{value['folder']}  {kind}  {value['free_bytes'] / 1e9:,.1f} GB free"
    for name, works in value["probe"].items():
        if isinstance(works, bool):
            note = "  (a run needs it)" if name in value["lacks"] else ""
            yield f"  {name:<16} {'works' if works else 'does not work'}{note}"
    yield f"{len(value['processes'])} processes: {', '.join(value['processes'])}"
    for check in value["checks"]:
        yield f"  {check['name']:<16} {'ok' if check['ok'] else 'WRONG'}: {check['detail']}"


def blend(value: dict[str, Any]) -> Iterable[str]:
    """One line for each corpus of a mixture: its share of the tokens, its size, and how often it is seen."""
    for share in value["shares"]:
        epochs = f", {share['epochs']:.3g} epochs for the budget" if share["epochs"] is not None else ""
        yield (
            f"{share['token_share']:7.2%} of the tokens: {share['corpus']} (weight {share['weight']:g} in "
            f"{value['unit']}; {share['num_documents']:,} documents, {share['num_tokens']:,} tokens{epochs})"
        )


def caches(values: list[dict[str, Any]]) -> Iterator[str]:
    """What `dataprep.cache` gives: one line for each cache."""
    for value in values:
        epochs = value["num_epochs"]
        often = "" if epochs is None else f" in {epochs} epochs" if epochs > 1 else " in one epoch"
        whose = "the blend" if value["prefix"] is None else value["prefix"]
        yield f"{value['state']:<8} {value['part']:<5} {value['num_samples']:>13,} samples{often} of {whose}"
        yield f"         {value['path']}"


def report(value: dict[str, Any]) -> Iterator[str]:
    """What `dataprep.verify` gives: a line for the pair, and below it each problem, what it does, what mends it."""
    facts = [f"{value['num_documents']:,} documents", f"{value['num_tokens']:,} tokens", value["dtype"] or "no dtype"]
    if value["num_sequences"] != value["num_documents"]:
        facts.append(f"{value['num_sequences']:,} sequences")
    if value["mean_length"] is not None:
        facts.append(f"lengths {value['min_length']:,} to {value['max_length']:,}, mean {value['mean_length']:,.1f}")
    for name, verb in (("eod", "end"), ("bos", "begin")):
        if value[f"{name}_id"] is not None:
            facts.append(f"{value[f'num_with_{name}']:,} {verb} with {value[f'{name}_id']}")
    if value["num_sampled"]:
        facts.append(f"{value['num_sampled']} re-encoded")
    yield f"{'ok ' if value['ok'] else 'BAD'}  {value['prefix']}  {'  '.join(facts)}"
    for problem in value["problems"]:
        place = ", ".join(f"{key} {at}" if key != "file" else str(at) for key, at in problem["place"].items())
        yield f"    {problem['severity']} {problem['code']}  {place}: {problem['message']}"
        yield f"        Megatron {problem['symptom']}"
        if problem["fix"]:
            yield f"        fix: {problem['fix']}"
    if value["level"] != "index" and value["bin_checksum"] is None:
        yield "    the tokens were not read: first mend what is above"


def table(rows: dict[str, str]) -> Iterator[str]:
    """Names and texts in two columns."""
    width = max(len(name) for name in rows)
    return (f"{name:<{width}}  {text}" for name, text in rows.items())


def difference(value: dict[str, Any]) -> Iterator[str]:
    """What `dataprep.diff` gives."""
    a, b, first = value["a"], value["b"], value["first"]
    dtypes = "" if a["dtype"] == b["dtype"] else f", {a['dtype']} and {b['dtype']}"
    if value["same"]:
        yield f"same  {a['num_documents']:,} documents, {a['num_tokens']:,} tokens{dtypes}"
        return
    yield value["relation"] if value["relation"] == "reordered" else "different"
    for name, side in (("A", a), ("B", b)):
        counts = "  ".join(f"{side[f'num_{what}']:,} {what}" for what in ("documents", "sequences", "tokens"))
        yield f"{name}  {side['prefix']}  {counts}  {side['dtype']}"
    if value["relation"] == "beginning":
        names = "AB" if a["num_documents"] < b["num_documents"] else "BA"
        yield f"{names[0]} is what {names[1]} begins with; there is more from document {first['document']:,} on:"
    elif first["token"] is None:
        yield f"document {first['document']:,} is the first that differs: the same ids, cut into other sequences:"
    else:
        yield f"document {first['document']:,}, token {first['token']:,} is the first that differs:"
    for name, side in (("A", first["a"]), ("B", first["b"])):
        if side is not None:
            yield from _excerpt(name, side, first["token"])
    if value["relation"] != "beginning":
        both = min(a["num_documents"], b["num_documents"])
        where = (
            "the same documents in another order"
            if value["relation"] == "reordered"
            else f"{value['num_only_a']:,} are in A only, {value['num_only_b']:,} in B only"
        )
        yield f"{value['num_differing']:,} of {both:,} documents differ from the other one of their number; {where}"


def _excerpt(name: str, side: dict[str, Any], token: int | None) -> Iterator[str]:
    """Ids around the first that differs, which stands in brackets; the text of them; and the source."""
    ids = [str(i) for i in side["ids"]]
    if token is not None and token - side["start"] < len(ids):
        ids[token - side["start"]] = f"[{ids[token - side['start']]}]"
    before = "... " if side["start"] else ""
    behind = " ..." if side["start"] + len(ids) < side["num_tokens"] else ""
    yield f"{name}  {side['num_tokens']:,} tokens: {before}{' '.join(ids)}{behind}"
    if side["text"] is not None:
        yield f"   {side['text']!r}"
    if side["file"] is not None:
        first, last = side["first_row"] + 1, side["last_row"] + 1
        rows = f"record {first:,}" if first == last else f"records {first:,} to {last:,}"
        yield f"   from {side['file']}, {rows}"
