-- Made-up data for a shop of :items books and :customers customers; the same for the same numbers.
--
-- As TPC-W has it: an author for four books, two addresses a customer, nine orders for ten customers, one to five books
-- an order. `pick(text, n)` spreads: a number below n that looks random and depends on its text only.

CREATE FUNCTION pg_temp.pick(seed text, below bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    $$ SELECT ((hashtextextended(seed, 7) & 9223372036854775807) % below) $$;

CREATE FUNCTION pg_temp.word(seed text) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT (ARRAY['amber','anchor','ash','autumn','badger','barley','bell','birch','bramble','bridge','candle','cedar','chalk',
        'cinder','clover','copper','coral','crane','crow','dawn','delta','drift','dune','ember','falcon','fennel','fern','flint',
        'fox','frost','garden','glass','gorse','granite','harbour','hazel','heather','heron','honey','island','ivory','ivy',
        'juniper','kestrel','lantern','lark','lichen','linden','maple','marble','marsh','meadow','mint','mirror','moss','needle',
        'north','oak','ocean','olive','orchard','otter','owl','paper','pebble','pepper','pine','plum','poppy','quarry','quill',
        'rain','raven','reed','river','robin','rose','rowan','rust','saffron','salt','sand','sedge','shadow','silver','slate',
        'snow','sparrow','spruce','stone','storm','summer','swan','thistle','thorn','tide','timber','velvet','violet','walnut',
        'water','willow','winter','wren','yarrow'])[1 + pg_temp.pick(seed, 105)] $$;

CREATE FUNCTION pg_temp.prose(seed text, words integer) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT initcap(left(said, 1)) || substr(said, 2) || '.'
       FROM (SELECT string_agg(pg_temp.word(seed || n), ' ') AS said FROM generate_series(1, words) AS n) AS made $$;

CREATE FUNCTION pg_temp.name(seed text) RETURNS text LANGUAGE sql IMMUTABLE AS
    $$ SELECT initcap(pg_temp.word(seed)) || (ARRAY['', 'by', 'er', 'ey', 'field', 'ford', 'ley', 'man', 'ton', 'wood'])[1 + pg_temp.pick(seed || '+', 10)] $$;

INSERT INTO country SELECT n, 'Country ' || n, 'C' || lpad(n::text, 2, '0'), 0.5 + pg_temp.pick('rate' || n, 200) / 100.0
    FROM generate_series(1, 92) AS n;

INSERT INTO author SELECT n, pg_temp.name('af' || n), pg_temp.name('al' || n),
        date '1900-01-01' + pg_temp.pick('ab' || n, 36500)::integer, pg_temp.prose('aa' || n, 20)
    FROM generate_series(1, greatest(:items / 4, 1)) AS n;

INSERT INTO item
    SELECT n, initcap(pg_temp.word('i1' || n) || ' ' || (ARRAY['and', 'of', 'beyond', 'without', 'in the', 'under the'])[1 + pg_temp.pick('i2' || n, 6)]
                || ' ' || pg_temp.word('i3' || n) || ' ' || pg_temp.word('i4' || n)),
        1 + pg_temp.pick('ia' || n, greatest(:items / 4, 1)), date '1960-01-01' + pg_temp.pick('ip' || n, 24000)::integer,
        pg_temp.name('iu' || n) || ' Press',
        (ARRAY['Arts','Biographies','Business','Children','Computers','Cooking','Health','History','Home','Humor','Literature',
            'Mystery','Non-Fiction','Parenting','Politics','Reference','Religion','Romance','Self-Help','Science-Nature',
            'Science-Fiction','Sports','Youth','Travel'])[1 + pg_temp.pick('is' || n, 24)],
        pg_temp.prose('id' || n, 40), pg_temp.pick('ig' || n, 100), retail,
        round(retail * (50 + pg_temp.pick('ic' || n, 51)) / 100, 2), date '2026-01-01' + pg_temp.pick('iv' || n, 30)::integer,
        10 + pg_temp.pick('ik' || n, 21), lpad(pg_temp.pick('in' || n, 9999999999999)::text, 13, '0'), 20 + pg_temp.pick('il' || n, 9980),
        (ARRAY['hardback', 'paperback', 'used', 'audio', 'limited'])[1 + pg_temp.pick('ib' || n, 5)],
        ARRAY(SELECT 1 + (n + 1 + pg_temp.pick('ir' || n || '.' || k, :items - 1)) % :items FROM generate_series(1, 5) AS k)
    FROM (SELECT n, round(1 + pg_temp.pick('im' || n, 9900) / 100.0, 2) AS retail FROM generate_series(1, :items) AS n) AS priced;

INSERT INTO address SELECT n, 1 + pg_temp.pick('dn' || n, 200) || ' ' || pg_temp.name('ds' || n) || ' Street', pg_temp.name('dc' || n),
        pg_temp.name('dt' || n), lpad(pg_temp.pick('dz' || n, 100000)::text, 5, '0'), 1 + pg_temp.pick('dy' || n, 92)
    FROM generate_series(1, 2 * :customers) AS n;

INSERT INTO customer SELECT n, 'reader' || n, 'secret' || n, pg_temp.name('cf' || n), pg_temp.name('cl' || n), 1 + pg_temp.pick('ca' || n, 2 * :customers),
        lpad(pg_temp.pick('cp' || n, 10000000000)::text, 10, '0'), 'reader' || n || '@example.org',
        date '2024-01-01' + pg_temp.pick('cs' || n, 730)::integer, timestamp '2026-06-01' + pg_temp.pick('cv' || n, 100000) * interval '1 minute',
        pg_temp.pick('cd' || n, 51) / 100.0, 0, pg_temp.pick('cb' || n, 100000) / 100.0,
        date '1930-01-01' + pg_temp.pick('cy' || n, 29000)::integer, pg_temp.prose('cx' || n, 20)
    FROM generate_series(1, :customers) AS n;

INSERT INTO orders SELECT n, 1 + pg_temp.pick('oc' || n, :customers), timestamp '2026-08-01' + n * interval '40 seconds', sub, round(sub * 0.08, 2),
        round(sub * 1.08, 2) + 3, (ARRAY['air', 'ship', 'courier', 'mail', 'ups', 'fedex'])[1 + pg_temp.pick('os' || n, 6)],
        timestamp '2026-08-03' + n * interval '40 seconds', 1 + pg_temp.pick('ob' || n, 2 * :customers), 1 + pg_temp.pick('oh' || n, 2 * :customers),
        (ARRAY['processing', 'shipped', 'pending', 'denied'])[1 + pg_temp.pick('ot' || n, 4)]
    FROM (SELECT n, 10 + pg_temp.pick('oq' || n, 100000) / 100.0 AS sub FROM generate_series(1, 9 * :customers / 10) AS n) AS summed;

INSERT INTO line SELECT o, k, 1 + pg_temp.pick('li' || o || '.' || k, :items), 1 + pg_temp.pick('lq' || o || '.' || k, 300) % 5,
        pg_temp.pick('ld' || o || '.' || k, 31) / 100.0, pg_temp.prose('lc' || o || '.' || k, 3)
    FROM generate_series(1, 9 * :customers / 10) AS o, LATERAL generate_series(1, 1 + pg_temp.pick('ln' || o, 5)) AS k;

INSERT INTO payment SELECT id, (ARRAY['visa', 'mastercard', 'discover', 'amex', 'diners'])[1 + pg_temp.pick('pk' || id, 5)],
        lpad(pg_temp.pick('pd' || id, 10000)::text, 4, '0'), date '2027-01-01' + pg_temp.pick('px' || id, 730)::integer,
        'auth' || pg_temp.pick('pa' || id, 1000000), total, placed
    FROM orders;

SELECT setval(pg_get_serial_sequence('address', 'id'), max(id)) FROM address;
SELECT setval(pg_get_serial_sequence('customer', 'id'), max(id)) FROM customer;
SELECT setval(pg_get_serial_sequence('orders', 'id'), max(id)) FROM orders;
