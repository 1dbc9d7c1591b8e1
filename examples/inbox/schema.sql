-- What the messages say has been paid in.
CREATE TABLE deposit (
	id		bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message	text NOT NULL,			-- not unique: idem alone keeps them apart here
	account	text NOT NULL,
	amount	numeric NOT NULL
);

-- The webhooks that came in, to be worked on from here.
CREATE TABLE webhook (
	id		text NOT NULL,			-- not unique, for the same reason
	body	jsonb NOT NULL
);

GRANT SELECT, INSERT ON deposit, webhook TO shop;

-- Marks must be kept for longer than anybody may deliver again.
ALTER DATABASE shop SET idem.retention = '7 d';

-- A message queue, which in real life is another system.
CREATE DATABASE queue;
\connect queue
CREATE ROLE queue LOGIN;
CREATE TABLE delivery (
	number	bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message	text NOT NULL,			-- the producer's name for the message, the same each time
	body	jsonb NOT NULL
);
GRANT SELECT, UPDATE, DELETE ON delivery TO queue;	-- UPDATE: to lock rows
