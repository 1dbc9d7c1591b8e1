\ir ../payments/schema.sql
