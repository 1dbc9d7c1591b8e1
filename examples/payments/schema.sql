-- What all of the payments services stand on, in a database of its own.

CREATE DATABASE payments;
\connect payments

CREATE EXTENSION idem;
SELECT idem_grant('shop');		-- the calls of an application, not the tables

-- Charged at a provider, which takes no part in our transactions.
CREATE TABLE payment (
	id			bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	client		text NOT NULL,
	reference	text NOT NULL,		-- what it is paid for
	amount		numeric NOT NULL,
	charge		text NOT NULL		-- the provider's name for it
);

-- From one customer to another: all there is to do is in this database.
CREATE TABLE transfer (
	id			bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	client		text NOT NULL,
	reference	text NOT NULL,
	amount		numeric NOT NULL
);

-- For wrong/table.py: what one builds without idem.
CREATE TABLE answer (
	client	text,
	key		text,
	body	text NOT NULL,
	PRIMARY KEY (client, key)
);

GRANT SELECT, INSERT ON payment, transfer, answer TO shop;
