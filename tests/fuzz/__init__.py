"""A fuzzer that stays: valid inputs of every reader, broken in random ways and given to the command line.

`make fuzz` runs it for minutes, `make test` for seconds. A finding is written to `out/fuzz/` as a case; moved to `cases/`, it
is replayed by `make test` for good.

    mutation   random changes to bytes and to trees of plain values
    examples   valid files to start from
    targets    one generator of cases for each kind of input
    case       a case, and what must hold when it is run
"""
