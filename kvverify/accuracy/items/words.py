"""Names and things of which questions are made: plain words, none of them a person or a firm."""

# ruff: noqa: SIM905 - words in a row read better than one quoted word a line

from __future__ import annotations

from random import Random

FIRST = (
    "Ada Amir Anneke Boris Chiara Daniel Dilnoza Elif Emeka Farah Gustav Hana Ines Ivo Jin Jonas Kaya Kofi Lars Leila "
    "Marek Mei Nadia Nils Olga Omar Paula Pedro Rafael Rania Sami Sofia Tariq Tomas Ursula Vera Wen Yara Yusuf Zoe"
).split()
LAST = (
    "Adler Baptiste Castro Dahl Eriksen Farouk Garcia Hoffmann Ibrahim Jansen Kowalski Larsen Moreau Nakamura Okafor "
    "Petrov Quinn Rossi Santos Takeda Ulrich Varga Weber Xu Yilmaz Zhang"
).split()
FIRMS = "Alder Basalt Cedar Delta Ember Fjord Granite Harbor Indigo Juniper Kestrel Lumen Meridian Nimbus Orchard Pallas".split()
FORMS = ("Ltd", "GmbH", "Inc", "Co", "AG", "Oy")
GOODS = (
    "ball valve;bearing ring;cable drum;circuit board;copper pipe;desk lamp;drill bit;fan motor;filter mat;gear wheel;glass pane;"
    "hex bolt;hose clamp;label roll;laser level;linen sheet;oak plank;paint tin;pallet jack;plug socket;pump seal;safety vest;"
    "sensor head;shelf board;steel beam;tape measure;toner unit;torque wrench;water tank;work glove"
).split(";")
CITIES = (
    "Accra Bergen Cusco Dakar Eindhoven Fukuoka Galway Haifa Izmir Jaipur Kazan Lyon Malmo Nairobi Oaxaca Porto Quito "
    "Riga Sapporo Tunis Utrecht Valencia Windhoek Xalapa Yerevan Zagreb"
).split()
CURRENCIES = ("EUR", "USD", "CHF", "JPY", "CNY", "GBP")
CHINESE_PLACES = (
    "青松",
    "白石",
    "红枫",
    "蓝湖",
    "银杏",
    "金沙",
    "云台",
    "竹溪",
    "玉泉",
    "石桥",
    "南湾",
    "北岭",
    "东林",
    "西河",
)
CHINESE_GOODS = ("轴承", "电缆", "滤网", "齿轮", "水泵", "木板", "玻璃", "标签", "螺栓", "灯具", "油漆", "手套")


def person(random: Random) -> str:
    """Return a first and a last name."""
    return f"{random.choice(FIRST)} {random.choice(LAST)}"


def firm(random: Random) -> str:
    """Return the name of a firm that does not exist."""
    return f"{random.choice(FIRMS)} {random.choice(FIRMS)} {random.choice(FORMS)}"


def cents(random: Random, low: int, high: int) -> float:
    """Return an amount with two digits after the point."""
    return random.randrange(100 * low, 100 * high) / 100
