-- What only MySQL has.
SET NAMES utf8mb4;
USE torture;
CREATE TABLE own_types (id INT PRIMARY KEY, v VECTOR(3), e VARCHAR(20) CHARACTER SET utf8mb4 DEFAULT 'a😀?b', j JSON);
CREATE TABLE expression_keys (id INT PRIMARY KEY, j JSON, KEY ((id + 1)), KEY many ((CAST(j -> '$.a' AS UNSIGNED ARRAY))));
INSERT INTO expression_keys VALUES (1, '{"a": [1, 2]}'), (2, NULL);
INSERT INTO own_types VALUES (1, STRING_TO_VECTOR('[1,-2.5,3e10]'), DEFAULT, '{"a": [1, 2]}'), (2, NULL, NULL, NULL);
CREATE TABLE geographic (id INT PRIMARY KEY, p POINT NOT NULL SRID 4326, SPATIAL INDEX (p));
INSERT INTO geographic VALUES (1, ST_GeomFromText('POINT(48.1 11.5)', 4326));
CREATE TABLE unseen_index (id INT PRIMARY KEY, v INT, KEY (v) INVISIBLE, CONSTRAINT c CHECK (v < 5) NOT ENFORCED);
INSERT INTO unseen_index VALUES (1, 10);
SET SESSION sql_generate_invisible_primary_key = ON;
CREATE TABLE generated_key (v INT);
INSERT INTO generated_key VALUES (3), (1), (2);
SET SESSION sql_generate_invisible_primary_key = OFF;
CREATE USER 'with_default'@'%' IDENTIFIED WITH caching_sha2_password BY 'z' DEFAULT ROLE writer;
ALTER USER 'plain'@'%' DEFAULT ROLE reader;
GRANT BACKUP_ADMIN ON *.* TO writer;
