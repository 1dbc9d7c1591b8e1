CREATE TABLE orders (
	id		bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	client	text NOT NULL,
	item	text NOT NULL,
	amount	numeric NOT NULL,
	charge	bigint					-- the provider's number for it
);

-- What a mailer sends: written in the transaction that says it is on its way.
CREATE TABLE mail (
	id		bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	orders	bigint NOT NULL REFERENCES orders,
	text	text NOT NULL
);

GRANT SELECT, INSERT, UPDATE ON orders, mail TO shop;
