"""SQLite loads of the TxFS paper, by one driver for all systems.

For each way it prints the units per second and the number of units; with a device's statistics also
its writes, sectors written and flushes during these units.

usage: driver.py LOAD WAY[,WAY...] FOLDER COUNT [STATISTICS]
       LOAD: update, tpcc, mail. WAY: plain, the unchanged program; wrapped, with a transaction
       around each unit and no other change; rewritten, without the parts that transactions
       replace. Several ways take turns of some units each, in a folder of its own each, since the
       state that one leaves (its process on another CPU than its server) costs the next one time.
       STATISTICS: like /sys/block/loop0/stat.
"""

import contextlib
import os
import random
import sqlite3
import sys
import time


class Variant:
    """A program's use of transactions, its folder, and its dice: all ways get the same units."""

    def __init__(self, name, folder):
        self.name, self.folder, self.chance = name, folder, random.Random(1)
        os.makedirs(folder, exist_ok=True)

    def around(self):
        if self.name == "plain":
            return contextlib.nullcontext()
        import xact

        return xact.transaction(self.folder)

    def open_database(self, name):
        db = sqlite3.connect(f"{self.folder}/{name}", isolation_level=None)
        db.execute("pragma synchronous=full")
        # With transactions of the file system it needs no journal.
        journal = "off" if self.name == "rewritten" else "delete"
        assert db.execute(f"pragma journal_mode={journal}").fetchone()[0] == journal
        return db

    @contextlib.contextmanager
    def unit(self, db):
        """One transaction of the database, and of the file system if the way uses them."""
        with self.around():
            db.execute("begin immediate")
            yield
            db.execute("commit")


# --- single rows ---


class Update:
    ROWS = 10_000

    def __init__(self, way):
        self.way, self.db = way, way.open_database("update.db")
        self.db.execute("create table t (id integer primary key, v text)")
        self.db.execute("begin")
        self.db.executemany("insert into t values (?, ?)", ((n, "a" * 100) for n in range(self.ROWS)))
        self.db.execute("commit")

    def one(self, n):
        row = self.way.chance.randrange(self.ROWS)
        with self.way.unit(self.db):
            self.db.execute("update t set v = ? where id = ?", (f"{n:0100}", row))

    def check(self, count):
        assert self.db.execute("pragma integrity_check").fetchone()[0] == "ok"


# --- TPC-C: all nine tables and five transactions, in the standard's mix, without think times ---

DISTRICTS, CUSTOMERS, ITEMS = 10, 300, 10_000
SCHEMA = """
create table warehouse (w_id integer primary key, w_name, w_tax, w_ytd);
create table district (d_w_id, d_id, d_name, d_tax, d_ytd, d_next_o_id, primary key (d_w_id, d_id)) without rowid;
create table customer (c_w_id, c_d_id, c_id, c_last, c_credit, c_discount, c_balance, c_ytd_payment, c_payment_cnt,
    c_delivery_cnt, c_data, primary key (c_w_id, c_d_id, c_id)) without rowid;
create index customer_last on customer (c_w_id, c_d_id, c_last);
create table history (h_c_w_id, h_c_d_id, h_c_id, h_amount, h_data);
create table orders (o_w_id, o_d_id, o_id, o_c_id, o_carrier_id, o_ol_cnt, primary key (o_w_id, o_d_id, o_id))
    without rowid;
create index orders_customer on orders (o_w_id, o_d_id, o_c_id, o_id);
create table new_order (no_w_id, no_d_id, no_o_id, primary key (no_w_id, no_d_id, no_o_id)) without rowid;
create table order_line (ol_w_id, ol_d_id, ol_o_id, ol_number, ol_i_id, ol_quantity, ol_amount, ol_delivery,
    primary key (ol_w_id, ol_d_id, ol_o_id, ol_number)) without rowid;
create table item (i_id integer primary key, i_name, i_price);
create table stock (s_w_id, s_i_id, s_quantity, s_ytd, s_order_cnt, s_data, primary key (s_w_id, s_i_id)) without rowid;
"""
SYLLABLES = "BAR OUGHT ABLE PRI PRES ESE ANTI CALLY ATION EING".split()


def last_name(n):
    return SYLLABLES[n // 100 % 10] + SYLLABLES[n // 10 % 10] + SYLLABLES[n % 10]


def nurand(chance, a, low, high):
    """Non-uniform, by 2.1.6 of the standard."""
    return ((chance.randint(0, a) | chance.randint(low, high)) + 42) % (high - low + 1) + low


class Tpcc:
    def __init__(self, way):
        self.way, self.chance = way, way.chance
        self.db = db = way.open_database("tpcc.db")
        db.executescript(SCHEMA)
        db.execute("begin")
        db.execute("insert into warehouse values (1, 'w', 0.1, 300000)")
        db.executemany("insert into item values (?, ?, ?)", ((n, f"item {n}", 1 + n % 100) for n in range(1, ITEMS + 1)))
        stock = ((1, n, self.chance.randint(10, 100), 0, 0, "x" * 50) for n in range(1, ITEMS + 1))
        db.executemany("insert into stock values (?, ?, ?, ?, ?, ?)", stock)
        for d in range(1, DISTRICTS + 1):
            db.execute("insert into district values (1, ?, 'd', 0.1, 30000, 1)", (d,))
            customers = ((1, d, c, last_name(c - 1), "GC", 0.1, -10, 10, 1, 0, "x" * 300) for c in range(1, CUSTOMERS + 1))
            db.executemany("insert into customer values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", customers)
        db.execute("commit")

    def district(self):
        return self.chance.randint(1, DISTRICTS)

    def customer(self, d):
        """By last name in 60 of 100 cases, the one in the middle; else by number."""
        if self.chance.random() < 0.6:
            query = "select c_id from customer where c_w_id = 1 and c_d_id = ? and c_last = ? order by c_id"
            found = self.db.execute(query, (d, last_name(nurand(self.chance, 255, 0, CUSTOMERS - 1)))).fetchall()
            if found:
                return found[len(found) // 2][0]
        return nurand(self.chance, 1023, 1, CUSTOMERS)

    def new_order(self):
        run, d = self.db.execute, self.district()
        (c, lines) = nurand(self.chance, 1023, 1, CUSTOMERS), self.chance.randint(5, 15)
        run("select w_tax from warehouse where w_id = 1").fetchone()
        run("select c_discount, c_last from customer where c_w_id = 1 and c_d_id = ? and c_id = ?", (d, c)).fetchone()
        (order,) = run("select d_next_o_id from district where d_w_id = 1 and d_id = ?", (d,)).fetchone()
        run("update district set d_next_o_id = ? where d_w_id = 1 and d_id = ?", (order + 1, d))
        run("insert into orders values (1, ?, ?, ?, null, ?)", (d, order, c, lines))
        run("insert into new_order values (1, ?, ?)", (d, order))
        for line in range(1, lines + 1):
            item, quantity = nurand(self.chance, 8191, 1, ITEMS), self.chance.randint(1, 10)
            (price,) = run("select i_price from item where i_id = ?", (item,)).fetchone()
            (left,) = run("select s_quantity from stock where s_w_id = 1 and s_i_id = ?", (item,)).fetchone()
            left = left - quantity if left >= quantity + 10 else left - quantity + 91
            change = "update stock set s_quantity = ?, s_ytd = s_ytd + ?, s_order_cnt = s_order_cnt + 1"
            run(change + " where s_w_id = 1 and s_i_id = ?", (left, quantity, item))
            values = (d, order, line, item, quantity, quantity * price)
            run("insert into order_line values (1, ?, ?, ?, ?, ?, ?, null)", values)

    def payment(self):
        run, d, amount = self.db.execute, self.district(), self.chance.randint(1, 5000)
        c = self.customer(d)
        run("update warehouse set w_ytd = w_ytd + ? where w_id = 1", (amount,))
        run("update district set d_ytd = d_ytd + ? where d_w_id = 1 and d_id = ?", (amount, d))
        change = "update customer set c_balance = c_balance - ?, c_ytd_payment = c_ytd_payment + ?"
        run(change + ", c_payment_cnt = c_payment_cnt + 1 where c_w_id = 1 and c_d_id = ? and c_id = ?", (amount, amount, d, c))
        run("insert into history values (1, ?, ?, ?, 'history')", (d, c, amount))

    def order_status(self):
        run, d = self.db.execute, self.district()
        c = self.customer(d)
        query = "select max(o_id) from orders where o_w_id = 1 and o_d_id = ? and o_c_id = ?"
        (order,) = run(query, (d, c)).fetchone()
        run("select * from order_line where ol_w_id = 1 and ol_d_id = ? and ol_o_id = ?", (d, order)).fetchall()

    def delivery(self):
        run, carrier = self.db.execute, self.chance.randint(1, 10)
        for d in range(1, DISTRICTS + 1):
            (order,) = run("select min(no_o_id) from new_order where no_w_id = 1 and no_d_id = ?", (d,)).fetchone()
            if order is None:
                continue
            key = (d, order)
            run("delete from new_order where no_w_id = 1 and no_d_id = ? and no_o_id = ?", key)
            run("update orders set o_carrier_id = ? where o_w_id = 1 and o_d_id = ? and o_id = ?", (carrier, *key))
            run("update order_line set ol_delivery = 1 where ol_w_id = 1 and ol_d_id = ? and ol_o_id = ?", key)
            (total,) = run("select sum(ol_amount) from order_line where ol_w_id = 1 and ol_d_id = ? and ol_o_id = ?", key).fetchone()
            (c,) = run("select o_c_id from orders where o_w_id = 1 and o_d_id = ? and o_id = ?", key).fetchone()
            change = "update customer set c_balance = c_balance + ?, c_delivery_cnt = c_delivery_cnt + 1"
            run(change + " where c_w_id = 1 and c_d_id = ? and c_id = ?", (total, d, c))

    def stock_level(self):
        run, d = self.db.execute, self.district()
        (order,) = run("select d_next_o_id from district where d_w_id = 1 and d_id = ?", (d,)).fetchone()
        query = """select count(distinct s_i_id) from order_line join stock on s_w_id = 1 and s_i_id = ol_i_id
            where ol_w_id = 1 and ol_d_id = ? and ol_o_id >= ? and s_quantity < ?"""
        run(query, (d, order - 20, self.chance.randint(10, 20))).fetchone()

    def one(self, _):
        kinds = [self.new_order, self.payment, self.order_status, self.delivery, self.stock_level]
        (kind,) = self.chance.choices(kinds, (45, 43, 4, 4, 4))
        with self.way.unit(self.db):
            kind()

    def check(self, count):
        """Consistency conditions 1 and 2 of the standard's 3.3.2."""
        one = lambda query: self.db.execute(query).fetchone()[0]
        assert one("select w_ytd - (select sum(d_ytd) from district) from warehouse") == 0
        orders = "(select max(o_id) from orders where o_d_id = d_id)"
        assert one(f"select count(*) from district where d_next_o_id - 1 <> ifnull({orders}, 0)") == 0
        assert one("pragma integrity_check") == "ok"


# --- a mail store as Android's: an attachment in a file, and a row that refers to it ---


class Mail:
    def __init__(self, way):
        self.way, self.body = way, os.urandom(16 << 10)
        self.folder = f"{way.folder}/attachments"
        os.mkdir(self.folder)
        self.db = way.open_database("mail.db")
        self.db.execute("create table mail (id integer primary key, subject text, attachment text)")

    def one(self, n):
        with self.way.unit(self.db):
            fd = os.open(f"{self.folder}/{n}", os.O_CREAT | os.O_WRONLY, 0o644)
            os.write(fd, self.body)
            if self.way.name != "rewritten":
                # The row may only exist if its attachment does.
                os.fsync(fd)
                dir_fd = os.open(self.folder, os.O_RDONLY)
                os.fsync(dir_fd)
                os.close(dir_fd)
            os.close(fd)
            self.db.execute("insert into mail values (?, ?, ?)", (n, "s" * 100, f"attachments/{n}"))

    def check(self, count):
        rows = self.db.execute("select count(*) from mail").fetchone()[0]
        assert rows == count == len(os.listdir(self.folder))

# Units in a turn.
TURN = 20


def counts(statistics):
    """Writes, sectors written, flushes (Documentation/block/stat.rst)."""
    if not statistics:
        return []
    with open(statistics) as file:
        fields = file.read().split()
    return [int(fields[n]) for n in (4, 6, 15)]


load, names, folder, count = sys.argv[1], sys.argv[2].split(","), sys.argv[3], int(sys.argv[4])
statistics = sys.argv[5] if len(sys.argv) > 5 else None
own_folder = (lambda name: folder) if len(names) == 1 else (lambda name: f"{folder}/{name}")
programs = [{"update": Update, "tpcc": Tpcc, "mail": Mail}[load](Variant(name, own_folder(name))) for name in names]
took = [0.0] * len(programs)
asked = [[0] * len(counts(statistics)) for _ in programs]
for round, first in enumerate(range(0, count, TURN)):
    for turn in range(len(programs)):
        # The first one changes with each round.
        which = (round + turn) % len(programs)
        before, started = counts(statistics), time.perf_counter()
        for n in range(first, min(first + TURN, count)):
            programs[which].one(n)
        took[which] += time.perf_counter() - started
        asked[which] = [sum + b - a for sum, a, b in zip(asked[which], before, counts(statistics))]
for program, seconds, io in zip(programs, took, asked):
    program.check(count)
    print(count / seconds, count, *io)
