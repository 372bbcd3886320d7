-- A shop that lends films: text to search, members, places, views over views, programs that keep tables in step.
SET NAMES utf8mb4;
SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION';
CREATE DATABASE rental CHARACTER SET utf8mb4;
USE rental;

CREATE TABLE digit (n TINYINT UNSIGNED PRIMARY KEY);
INSERT INTO digit VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
CREATE TABLE number (n SMALLINT UNSIGNED PRIMARY KEY);
INSERT INTO number SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n FROM digit a, digit b, digit c, digit d;

CREATE TABLE town (
  town_no SMALLINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, called VARCHAR(60) NOT NULL, land CHAR(2) CHARACTER SET ascii NOT NULL,
  lies POINT NOT NULL, SPATIAL KEY (lies), UNIQUE KEY (land, called)
) COMMENT 'where shops and members are';
INSERT INTO town (called, land, lies) SELECT CONCAT(ELT(1 + n % 4, 'Øster', 'Nieuw', 'São ', '新'), n), ELT(1 + n % 3, 'DK', 'PT', 'JP'), ST_GeomFromText(CONCAT('POINT(', n % 180, ' ', n % 90, '.5)')) FROM number WHERE n < 300;

CREATE TABLE person_shown (
  person_no INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, first_name VARCHAR(45) NOT NULL, last_name VARCHAR(45) NOT NULL,
  changed TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY by_name (last_name, first_name DESC)
);
INSERT INTO person_shown (first_name, last_name, changed) SELECT CONCAT('Ada', n % 37), CONCAT('von ', CHAR(65 + n % 26), n), '2024-01-01' + INTERVAL n HOUR FROM number WHERE n < 800;

CREATE TABLE film (
  film_no INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, title VARCHAR(128) NOT NULL, about TEXT, made YEAR,
  remake_of INT UNSIGNED, minutes SMALLINT UNSIGNED, price DECIMAL(5,2) NOT NULL DEFAULT 3.49,
  audience ENUM('all', 'six', 'twelve', 'grown up') NOT NULL DEFAULT 'all', extras SET('trailer', 'cut scenes', 'commentary', 'behind it'),
  price_by_minute DECIMAL(12,6) AS (price / NULLIF(minutes, 0)) STORED, cover BLOB,
  FULLTEXT KEY words (title, about), KEY (made), CONSTRAINT has_length CHECK (minutes > 0)
);
INSERT INTO film (film_no, title, about, made, remake_of, minutes, price, audience, extras, cover)
SELECT n + 1, CONCAT('The ', ELT(1 + n % 5, 'Lantern', 'Émigré', 'Tide', 'Clockmaker', '夜'), ' ', n), CONCAT('A tale of ', REPEAT(CONCAT('harbour ', n % 13, ' and sea; '), 1 + n % 9)),
  1930 + n % 95, IF(n % 50 = 7, n, NULL), 40 + n % 150, 1 + (n % 700) / 100, 1 + n % 4, n % 16, IF(n % 10, NULL, UNHEX(SHA2(n, 256)))
FROM number WHERE n < 2000;
ALTER TABLE film ADD CONSTRAINT remake FOREIGN KEY (remake_of) REFERENCES film (film_no) ON DELETE SET NULL;

CREATE TABLE plays_in (
  person_no INT UNSIGNED NOT NULL, film_no INT UNSIGNED NOT NULL, as_whom VARCHAR(40), PRIMARY KEY (person_no, film_no), KEY (film_no),
  CONSTRAINT plays_person FOREIGN KEY (person_no) REFERENCES person_shown (person_no) ON UPDATE CASCADE,
  CONSTRAINT plays_film FOREIGN KEY (film_no) REFERENCES film (film_no) ON UPDATE CASCADE ON DELETE CASCADE
);
INSERT INTO plays_in SELECT 1 + (number.n * 7 + k.n * 131) % 800, 1 + number.n % 2000, NULLIF(CONCAT('role ', k.n), 'role 3') FROM number, (SELECT n FROM digit WHERE n < 5) k WHERE number.n < 2000
ON DUPLICATE KEY UPDATE as_whom = 'twice';

-- Shops have a head, who works in a shop.
CREATE TABLE shop (shop_no TINYINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, town_no SMALLINT UNSIGNED NOT NULL, head TINYINT UNSIGNED, CONSTRAINT shop_town FOREIGN KEY (town_no) REFERENCES town (town_no));
CREATE TABLE staff (
  staff_no TINYINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, shop_no TINYINT UNSIGNED NOT NULL, login VARCHAR(16) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL UNIQUE,
  picture MEDIUMBLOB, is_active BOOLEAN NOT NULL DEFAULT TRUE, CONSTRAINT staff_shop FOREIGN KEY (shop_no) REFERENCES shop (shop_no)
);
INSERT INTO shop VALUES (1, 5, NULL), (2, 17, NULL), (3, 99, NULL);
INSERT INTO staff SELECT n + 1, 1 + n % 3, CONCAT('clerk', n), REPEAT(UNHEX(SHA2(n, 256)), 2000), n % 4 FROM digit;
UPDATE shop SET head = shop_no;
ALTER TABLE shop ADD CONSTRAINT shop_head FOREIGN KEY (head) REFERENCES staff (staff_no);

CREATE TABLE member (
  member_no INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, shop_no TINYINT UNSIGNED NOT NULL, town_no SMALLINT UNSIGNED NOT NULL, name VARCHAR(90) NOT NULL,
  mail VARCHAR(80) CHARACTER SET ascii COLLATE ascii_general_ci, owes DECIMAL(8,2) NOT NULL DEFAULT 0, since DATE NOT NULL, left_at DATETIME(3), KEY (mail(12)),
  CONSTRAINT member_shop FOREIGN KEY (shop_no) REFERENCES shop (shop_no), CONSTRAINT member_town FOREIGN KEY (town_no) REFERENCES town (town_no)
);
INSERT INTO member SELECT n + 1, 1 + n % 3, 1 + n % 300, CONCAT('Zoë ', n), IF(n % 9, CONCAT('m', n, '@example.org'), NULL), 0, '2010-01-01' + INTERVAL n DAY, IF(n % 20, NULL, '2025-05-05 05:05:05.125') FROM number WHERE n < 3000;

CREATE TABLE copy_held (copy_no INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, film_no INT UNSIGNED NOT NULL, shop_no TINYINT UNSIGNED NOT NULL,
  CONSTRAINT copy_film FOREIGN KEY (film_no) REFERENCES film (film_no), CONSTRAINT copy_shop FOREIGN KEY (shop_no) REFERENCES shop (shop_no));
INSERT INTO copy_held SELECT n + 1, 1 + n % 2000, 1 + n % 3 FROM number;

CREATE TABLE loan (
  loan_no BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, copy_no INT UNSIGNED NOT NULL, member_no INT UNSIGNED NOT NULL, staff_no TINYINT UNSIGNED NOT NULL,
  taken DATETIME NOT NULL, returned DATETIME, UNIQUE KEY once (taken, copy_no, member_no), KEY (member_no),
  CONSTRAINT loan_copy FOREIGN KEY (copy_no) REFERENCES copy_held (copy_no), CONSTRAINT loan_member FOREIGN KEY (member_no) REFERENCES member (member_no), CONSTRAINT loan_staff FOREIGN KEY (staff_no) REFERENCES staff (staff_no)
);
INSERT INTO loan SELECT number.n * 3 + k.n + 1, 1 + (number.n * 31 + k.n) % 10000, 1 + (number.n * 17 + k.n * 5) % 3000, 1 + number.n % 10, '2023-01-01' + INTERVAL number.n * 90 + k.n MINUTE,
  IF(number.n % 11, '2023-01-03' + INTERVAL number.n * 90 MINUTE, NULL) FROM number, (SELECT n FROM digit WHERE n < 3) k;

CREATE TABLE payment (payment_no INT UNSIGNED NOT NULL AUTO_INCREMENT, loan_no BIGINT UNSIGNED, member_no INT UNSIGNED NOT NULL, paid DECIMAL(6,2) NOT NULL, paid_at DATETIME NOT NULL, PRIMARY KEY (payment_no, paid_at))
PARTITION BY RANGE (YEAR(paid_at)) (PARTITION old VALUES LESS THAN (2024), PARTITION y2024 VALUES LESS THAN (2025), PARTITION rest VALUES LESS THAN MAXVALUE);
INSERT INTO payment SELECT loan_no, IF(loan_no % 13, loan_no, NULL), member_no, 1 + loan_no % 9, taken + INTERVAL loan_no % 500 DAY FROM loan WHERE loan_no % 3 < 2;

CREATE TABLE film_words (film_no INT UNSIGNED NOT NULL PRIMARY KEY, title VARCHAR(128) NOT NULL, FULLTEXT KEY (title)) ENGINE = MyISAM;
INSERT INTO film_words SELECT film_no, title FROM film;
DELIMITER ;;
CREATE TRIGGER film_made AFTER INSERT ON film FOR EACH ROW BEGIN
  INSERT INTO film_words VALUES (NEW.film_no, NEW.title); -- it's kept in step
END;;
CREATE TRIGGER film_changed AFTER UPDATE ON film FOR EACH ROW UPDATE film_words SET title = NEW.title WHERE film_no = OLD.film_no;;
CREATE TRIGGER loan_taken BEFORE INSERT ON loan FOR EACH ROW SET NEW.taken = COALESCE(NEW.taken, NOW());;
CREATE FUNCTION owed (who INT UNSIGNED, day DATE) RETURNS DECIMAL(10,2) READS SQL DATA COMMENT 'what a member owes'
BEGIN
  DECLARE fees, paid DECIMAL(10,2) DEFAULT 0;
  SELECT COALESCE(SUM(f.price), 0) INTO fees FROM loan l JOIN copy_held c ON c.copy_no = l.copy_no JOIN film f ON f.film_no = c.film_no WHERE l.member_no = who AND l.taken < day;
  SELECT COALESCE(SUM(p.paid), 0) INTO paid FROM payment p WHERE p.member_no = who AND p.paid_at < day;
  RETURN fees - paid; # may be less than nothing
END;;
CREATE PROCEDURE copies_here (IN which INT, IN place INT, OUT free INT) READS SQL DATA
BEGIN
  SELECT COUNT(*) INTO free FROM copy_held c WHERE c.film_no = which AND c.shop_no = place AND NOT EXISTS (SELECT 1 FROM loan l WHERE l.copy_no = c.copy_no AND l.returned IS NULL);
END;;
DELIMITER ;
CREATE VIEW members_of_shops AS SELECT m.member_no, m.name, t.called AS `town's name`, IF(m.left_at IS NULL, 'here', 'gone') AS state FROM member m JOIN town t ON t.town_no = m.town_no;
CREATE VIEW casts AS SELECT f.film_no, f.title, GROUP_CONCAT(CONCAT(p.first_name, ' ', p.last_name) ORDER BY p.last_name SEPARATOR ', ') AS cast_of FROM film f LEFT JOIN plays_in i ON i.film_no = f.film_no LEFT JOIN person_shown p ON p.person_no = i.person_no GROUP BY f.film_no, f.title;
CREATE SQL SECURITY INVOKER VIEW takings AS SELECT s.shop_no, SUM(p.paid) AS total FROM payment p JOIN member s ON s.member_no = p.member_no GROUP BY s.shop_no;
CREATE VIEW members_who_left AS SELECT x.* FROM members_of_shops x WHERE x.state = 'gone';
