"""A shop in Django: a request stores an order and its shipping in one transaction, and a worker ships it.

python django_shop.py            serves HTTP, and prints its port
flowfabric worker django_shop:app
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from wsgiref.simple_server import make_server

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

settings.configure(
    DATABASES={"default": json.loads(os.environ["SHOP_DATABASE"])}, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"]
)
django.setup()

from flowfabric import App, current, sync  # noqa: E402 - Django is set up first

app = App(options=json.loads(os.environ["SHOP_OPTIONS"]))
EFFECTS, PACKER = Path("effects.txt"), Path("packer-is-back.txt")


class Order(models.Model):  # type: ignore[misc] # Django has no types
    number = models.IntegerField(primary_key=True)
    state = models.TextField(default="ordered")

    class Meta:
        app_label = "shop"


def note(effect: str) -> None:
    with EFFECTS.open("a") as file:
        file.write(f"{effect} {current().idempotency_key}\n")


def charge(number: int) -> None:
    note(f"charged {number}")
    Order.objects.filter(number=number).update(state="paid")


def pack(number: int) -> str:
    note(f"packing {number}")
    while not PACKER.exists():
        time.sleep(0.02)
    return f"parcel {number}"


def send(number: int, parcel: str) -> None:
    note(f"sent {parcel}")
    Order.objects.filter(number=number).update(state="shipped")


@app.task
def ship(number: int) -> str:
    sync.step(charge, number)
    parcel = sync.step(pack, number)
    sync.step(send, number, parcel)
    return parcel


def orders(request: HttpRequest, number: int) -> JsonResponse:
    if request.method == "GET":
        return JsonResponse({"states": list(Order.objects.filter(number=number).values_list("state", flat=True))})
    try:
        with transaction.atomic():
            Order.objects.create(number=number)
            handle = ship.sync.options(connection=connection, key=f"ship-{number}").submit(number)
            if "refuse" in request.GET:
                raise ValueError("the card was refused")
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=402)
    return JsonResponse({"id": str(handle.id)})


urlpatterns = [path("orders/<int:number>", orders)]

if __name__ == "__main__":
    with connection.schema_editor() as schema:
        schema.create_model(Order)
    with make_server("127.0.0.1", 0, get_wsgi_application()) as server:
        sys.stdout.write(f"port {server.server_port}\n")
        server.serve_forever()
