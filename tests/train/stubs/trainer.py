"""Stands in for a trainer: each rank records what it was given in the folder $RECORDS.

--code N     rank 0 ends with it; with --others, once all are at work
--others     but rank 0 wait, as with --wait
--wait       until SIGTERM; then "saves a checkpoint", which takes a moment, and ends well; at once if it has before
"""

import json
import os
import pathlib
import signal
import sys
import time

told = []


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    folder, rank = pathlib.Path(os.environ["RECORDS"]), os.environ["RANK"]
    record = {"argv": sys.argv[1:], "cwd": os.getcwd(), "environment": dict(os.environ)}
    temporary = folder / f"{os.getpid()}.tmp"
    temporary.write_text(json.dumps(record))
    temporary.rename(folder / f"rank-{rank}.json")
    os.write(1, f"rank {rank} is at work\n".encode())  # in one piece, whatever the others write
    waits = "--wait" in sys.argv or ("--others" in sys.argv and rank != "0")
    if waits and not (folder / f"saved-{rank}").exists():
        while not told:
            time.sleep(0.01)
        time.sleep(0.3)
        (folder / f"saved-{rank}").touch()
        os.write(1, f"rank {rank} has saved\n".encode())
    if "--code" in sys.argv and rank == "0":
        while "--others" in sys.argv and len(list(folder.glob("rank-*.json"))) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.01)
        return int(sys.argv[sys.argv.index("--code") + 1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
