"""The tables of the five papers, measured here beside what is printed there.

    python -m benchmarks.papers scgd --table 2 --data DIR             # one table
    python -m benchmarks.papers scgd --table 2 --data DIR --resume    # go on with it

A cell of a table is a row of ``published/PAPER_TABLE.csv``: what is to be fitted (columns without a
deviation), then each measure and its published deviation. What a cell gives here is appended to
``benchmarks/results/papers/PAPER_TABLE.csv`` as soon as it is known, beside the published figures,
with commit, versions, seed and seconds: an interrupted run loses the cells that were under way.
The site's page of all tables is made from both when it is built (``page.py``).
"""
