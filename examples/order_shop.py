"""A shop that stores an order and the execution that ships it in one transaction."""

from __future__ import annotations

import asyncio
from uuid import UUID

from sqlalchemy import Engine, ForeignKey, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from flowfabric import App, NotFound, step
from stage import play

app = App()


class Table(DeclarativeBase):
    """The base of the shop's tables, which are in the same database as the executions."""


class Product(Table):
    """A product and its stock."""

    __tablename__ = "example_product"
    name: Mapped[str] = mapped_column(primary_key=True)
    stock: Mapped[int]


class Order(Table):
    """An order and the id of the execution that ships it."""

    __tablename__ = "example_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str] = mapped_column(ForeignKey("example_product.name"))
    customer: Mapped[str]
    shipping: Mapped[UUID | None]


class SoldOut(Exception):
    """The product is sold out. The submitted execution is rolled back with the transaction."""

    def __init__(self, product: str, shipping: UUID) -> None:
        super().__init__(f"{product} is sold out")
        self.shipping = shipping


@app.task
async def ship(order: int, product: str, customer: str) -> str:
    """Ship an order. This runs if and only if the order was committed."""
    label = await step(print_label, order, customer)
    return await step(hand_over, label, product)


def buy(shop: Engine, product: str, customer: str) -> UUID:
    """Store the stock, the order and the execution in one transaction."""
    with Session(shop) as session, session.begin():
        stocked = session.get_one(Product, product, with_for_update=True)
        order = Order(product=product, customer=customer)
        session.add(order)
        session.flush()
        shipping = ship.sync.options(connection=session).submit(order.id, product, customer)
        order.shipping = shipping.id
        stocked.stock -= 1
        if stocked.stock < 0:
            raise SoldOut(product, shipping.id)
        return shipping.id


# The simulated environment: a label printer, a carrier, and a database with two bicycles.


async def print_label(order: int, customer: str) -> str:
    return f"for {customer}"


async def hand_over(label: str, product: str) -> str:
    return f"a {product} {label}"


def open_shop(store: str) -> Engine:
    """Open the database of the executions with SQLAlchemy and create the shop's tables."""
    address = store.replace("postgresql://", "postgresql+psycopg://") if "://" in store else f"sqlite:///{store}"
    shop = create_engine(address)
    Table.metadata.drop_all(shop)
    Table.metadata.create_all(shop)
    with Session(shop) as session, session.begin():
        session.add(Product(name="bicycle", stock=2))
    return shop


async def main() -> None:
    async with app, app.worker():
        shop = await asyncio.to_thread(open_shop, app.store)
        for customer in ("ada", "grace", "linus"):
            try:
                shipping = await asyncio.to_thread(buy, shop, "bicycle", customer)
                print(f"{customer}: {await ship.handle(shipping)}")
            except SoldOut as sold_out:
                print(f"{customer}: {sold_out}, the transaction is rolled back")
                await look_for(sold_out.shipping)
        with Session(shop) as session:
            print(f"orders in the database: {', '.join(session.scalars(select(Order.customer).order_by(Order.id)))}")
        shop.dispose()


async def look_for(shipping: UUID) -> None:
    try:
        await ship.handle(shipping).status()
    except NotFound as error:
        print(f"the execution that would have shipped it: {error.code}")


if __name__ == "__main__":
    play(main)
