-- People who work somewhere, with all that was before: rows that hold from one day to another, under composite keys.
SET NAMES utf8mb4;
SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION';
CREATE DATABASE personnel CHARACTER SET latin1;
USE personnel;

CREATE TABLE digit (n TINYINT UNSIGNED PRIMARY KEY);
INSERT INTO digit VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
CREATE TABLE number (n SMALLINT UNSIGNED PRIMARY KEY);
INSERT INTO number SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n FROM digit a, digit b, digit c, digit d;

CREATE TABLE unit (unit_no CHAR(4) NOT NULL PRIMARY KEY, called VARCHAR(40) NOT NULL, part_of CHAR(4), UNIQUE KEY (called), CONSTRAINT unit_of FOREIGN KEY (part_of) REFERENCES unit (unit_no));
INSERT INTO unit SELECT CONCAT('u', LPAD(n, 3, '0')), CONCAT('Abteilung für ', n), NULL FROM number WHERE n < 40;
UPDATE unit SET part_of = 'u000' WHERE unit_no > 'u003';

CREATE TABLE worker (
  worker_no INT NOT NULL, born DATE NOT NULL, first_name VARCHAR(30) NOT NULL, last_name VARCHAR(40) NOT NULL, sex ENUM('f', 'm', 'x'), hired DATE NOT NULL,
  badge BINARY(8), PRIMARY KEY (worker_no), KEY (last_name(6), born DESC)
);
INSERT INTO worker SELECT 10001 + n * 7, '1950-01-01' + INTERVAL n * 3 DAY, CONCAT('Jörg', n % 101), CONCAT('Müller', n), 1 + n % 3, '1985-01-01' + INTERVAL n DAY, UNHEX(LEFT(SHA2(n, 256), 16)) FROM number WHERE n < 4000;

CREATE TABLE worker_in_unit (
  worker_no INT NOT NULL, unit_no CHAR(4) NOT NULL, from_day DATE NOT NULL, to_day DATE NOT NULL DEFAULT '9999-01-01', PRIMARY KEY (worker_no, unit_no), KEY (unit_no),
  CONSTRAINT in_worker FOREIGN KEY (worker_no) REFERENCES worker (worker_no) ON DELETE CASCADE, CONSTRAINT in_unit FOREIGN KEY (unit_no) REFERENCES unit (unit_no) ON DELETE CASCADE
);
INSERT INTO worker_in_unit SELECT worker_no, CONCAT('u', LPAD(worker_no % 40, 3, '0')), hired, IF(worker_no % 4, '9999-01-01', hired + INTERVAL 900 DAY) FROM worker;
INSERT INTO worker_in_unit SELECT worker_no, CONCAT('u', LPAD((worker_no + 1) % 40, 3, '0')), hired + INTERVAL 900 DAY, '9999-01-01' FROM worker WHERE worker_no % 4 = 0;

CREATE TABLE leads (unit_no CHAR(4) NOT NULL, worker_no INT NOT NULL, from_day DATE NOT NULL, to_day DATE NOT NULL, PRIMARY KEY (unit_no, worker_no), CONSTRAINT leads_worker FOREIGN KEY (worker_no) REFERENCES worker (worker_no), CONSTRAINT leads_unit FOREIGN KEY (unit_no) REFERENCES unit (unit_no));
INSERT INTO leads SELECT CONCAT('u', LPAD(worker_no % 40, 3, '0')), worker_no, hired, '9999-01-01' FROM worker WHERE worker_no < 10281;

CREATE TABLE title (worker_no INT NOT NULL, title VARCHAR(50) NOT NULL, from_day DATE NOT NULL, to_day DATE, PRIMARY KEY (worker_no, title, from_day), CONSTRAINT title_worker FOREIGN KEY (worker_no) REFERENCES worker (worker_no) ON DELETE CASCADE);
INSERT INTO title SELECT worker_no, ELT(1 + k.n, 'Gehilfe', 'Geselle', 'Meister'), hired + INTERVAL k.n * 1000 DAY, IF(k.n < 2, hired + INTERVAL (k.n + 1) * 1000 DAY, NULL) FROM worker, (SELECT n FROM digit WHERE n < 3) k;

CREATE TABLE wage (worker_no INT NOT NULL, amount INT NOT NULL, from_day DATE NOT NULL, to_day DATE NOT NULL, PRIMARY KEY (worker_no, from_day))
PARTITION BY RANGE COLUMNS (from_day) (PARTITION p1990 VALUES LESS THAN ('1990-01-01'), PARTITION p2000 VALUES LESS THAN ('2000-01-01'), PARTITION later VALUES LESS THAN (MAXVALUE));
INSERT INTO wage SELECT worker_no, 30000 + worker_no % 9000 + k.n * 1200, hired + INTERVAL k.n YEAR, hired + INTERVAL k.n + 1 YEAR FROM worker, (SELECT n FROM digit WHERE n < 6) k;
INSERT INTO wage SELECT worker_no, 90000, '2030-01-01', '9999-01-01' FROM worker;

CREATE VIEW unit_latest AS SELECT worker_no, MAX(from_day) AS from_day, MAX(to_day) AS to_day FROM worker_in_unit GROUP BY worker_no;
CREATE VIEW unit_now AS SELECT l.worker_no, d.unit_no, l.from_day, l.to_day FROM worker_in_unit d JOIN unit_latest l ON l.worker_no = d.worker_no AND l.from_day = d.from_day WHERE l.to_day = '9999-01-01';
CREATE VIEW wage_now AS SELECT worker_no, amount FROM wage WHERE to_day = '9999-01-01' WITH LOCAL CHECK OPTION;
DELIMITER ;;
CREATE FUNCTION unit_of (who INT) RETURNS CHAR(4) CHARACTER SET latin1 READS SQL DATA RETURN (SELECT unit_no FROM unit_now WHERE worker_no = who LIMIT 1);;
CREATE PROCEDURE raise (IN who INT, IN more INT) MODIFIES SQL DATA BEGIN
  START TRANSACTION;
  UPDATE wage SET to_day = CURRENT_DATE WHERE worker_no = who AND to_day = '9999-01-01';
  INSERT INTO wage SELECT who, MAX(amount) + more, CURRENT_DATE, '9999-01-01' FROM wage WHERE worker_no = who;
  COMMIT;
END;;
DELIMITER ;
