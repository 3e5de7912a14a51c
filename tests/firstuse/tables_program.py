"""A day's sales, sent and read back by every library that reads tables; all of them must find the same."""

import dataclasses
import os

import duckdb
import pandas
import polars
import pyarrow

import engine

COUNT = 100_000


@dataclasses.dataclass
class Sale:
    shop: str
    cents: int


def check(shops: dict[str, int], how: str) -> None:
    wanted = {f"shop-{n}": sum(range(n, COUNT, 4)) for n in range(4)}
    assert shops == wanted, f"{how}: {shops}"
    print(how)


def main() -> None:
    url = os.environ.get("SALES_URL")
    with engine.Client(url) if url else engine.open("./data") as e:
        sales = polars.DataFrame({"shop": [f"shop-{n % 4}" for n in range(COUNT)], "cents": range(COUNT)})
        with e.producer("sales", schema=Sale) as producer:
            producer.send_table(sales)
            producer.flush()

        columns = ["shop", "cents"]
        table = e.table("sales", schema=Sale, columns=columns)
        reader = e.reader("sales", schema=Sale, columns=columns)
        assert isinstance(table, pyarrow.Table)
        sums = table.group_by("shop").aggregate([("cents", "sum")])
        check(dict(zip(*(column.to_pylist() for column in sums.columns), strict=True)), "pyarrow")
        for how, source in (("table", table), ("reader", reader)):
            frame = polars.DataFrame(source).group_by("shop").agg(polars.col("cents").sum())
            check(dict(frame.iter_rows()), f"polars, {how}")
            rows = duckdb.sql("select shop, sum(cents)::bigint from source group by all").fetchall()
            check(dict(rows), f"duckdb, {how}")
            assert source is not None
        grouped = pandas.DataFrame(table.to_pandas()).groupby("shop")["cents"].sum()
        check({str(shop): int(cents) for shop, cents in grouped.items()}, "pandas")


main()
