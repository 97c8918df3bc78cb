-- What the fourteen interactions look for.
CREATE INDEX ON item (subject, published DESC, title);
CREATE INDEX ON item USING gin (to_tsvector('simple', title));
CREATE INDEX ON item (author);
CREATE INDEX ON author (lower(last_name) text_pattern_ops);
CREATE INDEX ON orders (customer, id);
CREATE INDEX ON line (item);
CREATE EXTENSION pg_stat_statements;
