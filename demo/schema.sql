-- Two databases: the shop's, and the payment provider's, which in real life is
-- somebody else's and cannot take part in the shop's transactions.

CREATE DATABASE shop;
CREATE DATABASE provider;

\connect shop

CREATE EXTENSION idem;
CREATE ROLE shop LOGIN;
SELECT idem_grant('shop');		-- the calls an application makes, not the tables

CREATE TABLE payment (
	id		bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	client	text NOT NULL,
	amount	numeric NOT NULL,
	charge	bigint NOT NULL			-- the provider's number for it
);

CREATE TABLE purchase (
	id		bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	client	text NOT NULL,
	item	text NOT NULL
);

-- What one builds without idem: the key and the answer, with a unique index.
CREATE TABLE naive_answer (
	client	text,
	key		text,
	body	text NOT NULL,
	PRIMARY KEY (client, key)
);

GRANT SELECT, INSERT ON payment, purchase, naive_answer TO shop;

\connect provider

CREATE ROLE provider LOGIN;

CREATE TABLE charge (
	id				bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	provider_key	text UNIQUE,	-- one charge a key; without a key there is no telling
	reference		text NOT NULL,	-- the shop's name for it; the demo counts by this
	amount			numeric NOT NULL
);

GRANT SELECT, INSERT, UPDATE ON charge TO provider;
