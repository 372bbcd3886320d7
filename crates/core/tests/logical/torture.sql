-- Every type and every kind of object that both flavors have, with the values that are lost most easily.
SET NAMES utf8mb4;
SET SESSION sql_mode = 'ALLOW_INVALID_DATES';
SET SESSION time_zone = '+00:00', foreign_key_checks = 0;

CREATE DATABASE torture CHARACTER SET latin1 COLLATE latin1_swedish_ci;
CREATE DATABASE `odd ``name.with/all%#` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE DATABASE `größe` CHARACTER SET utf8mb4;
USE torture;

CREATE TABLE numbers (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  t TINYINT, tu TINYINT UNSIGNED, s SMALLINT, m MEDIUMINT, i INT, iz INT(9) UNSIGNED ZEROFILL, b BIGINT, bu BIGINT UNSIGNED,
  d1 DECIMAL(65,30), d2 DECIMAL(10,0), dz DECIMAL(8,3) UNSIGNED ZEROFILL,
  f FLOAT, fm FLOAT(10,3), d DOUBLE, dm DOUBLE(22,6), bi1 BIT(1), bi13 BIT(13), bi64 BIT(64), y YEAR
) AUTO_INCREMENT = 1000;
INSERT INTO numbers VALUES
 (1, -128, 255, -32768, -8388608, -2147483648, 7, -9223372036854775808, 18446744073709551615,
  -99999999999999999999999999999999999.999999999999999999999999999999, 9999999999, 1.5,
  1.17549435e-38, 1234567.891, 2.2250738585072014e-308, 1234567890123456.789012, b'1', b'1010101010101', X'FFFFFFFFFFFFFFFF', 1901),
 (2, 127, 0, 32767, 8388607, 2147483647, 123456789, 9223372036854775807, 0,
  0.000000000000000000000000000001, -1, 0, 3.4028234663852886e38, -0.001, 1.7976931348623157e308, 0.1, b'0', 0, 0, 2155),
 (3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -0e0, -0e0, -0e0, -0e0, b'0', b'1', X'0A0D5C27', 0),
 (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (5, 1, 1, 1, 1, 1, 1, 1, 1, 1.1, 1, 1, 16777217, 16777.217, 0.1e0 + 0.2e0, 1e0/3e0, 1, 1, 1, 1970),
 (18446744073709551615, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1e-45, 2, 5e-324, 2, 1, 2, 2, 2026);

CREATE TABLE zero_id (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, v INT);
INSERT INTO zero_id VALUES (7, 1);
UPDATE zero_id SET id = 0;
INSERT INTO zero_id VALUES (-5, 2), (3, 3);

CREATE TABLE times (
  id INT PRIMARY KEY, d DATE, t TIME, t6 TIME(6), dt DATETIME, dt6 DATETIME(6),
  ts TIMESTAMP NULL DEFAULT NULL, ts6 TIMESTAMP(6) NULL DEFAULT NULL, tsz TIMESTAMP NOT NULL DEFAULT '2001-01-01 00:00:00'
);
INSERT INTO times VALUES
 (1, '0000-00-00', '-838:59:59', '-838:59:58.999999', '0000-00-00 00:00:00', '0000-00-00 00:00:00', '0000-00-00 00:00:00', '0000-00-00 00:00:00', '0000-00-00 00:00:00'),
 (2, '2024-00-00', '838:59:59', '838:59:58.000001', '2024-05-00 10:00:00', '9999-12-31 23:59:59.999999', '2038-01-19 03:14:07', '2038-01-19 03:14:07.999999', '1970-01-01 00:00:01'),
 (3, '2023-02-31', '00:00:00', '-00:00:00.000001', '2023-02-31 00:00:00', '1000-01-01 00:00:00.000001', '2026-03-29 02:30:00', '2026-10-25 01:30:00.5', '2026-10-25 00:30:00'),
 (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '2000-02-29 12:00:00');

CREATE TABLE texts (
  id INT PRIMARY KEY,
  c CHAR(20) CHARACTER SET utf8mb4, v VARCHAR(300) CHARACTER SET utf8mb4, l1 VARCHAR(300) CHARACTER SET latin1,
  u2 VARCHAR(60) CHARACTER SET ucs2, u16 TEXT CHARACTER SET utf16, u32 CHAR(5) CHARACTER SET utf32, sj VARCHAR(60) CHARACTER SET sjis,
  gb VARCHAR(60) CHARACTER SET gbk, cp TINYTEXT CHARACTER SET cp1251, asc_ CHAR(10) CHARACTER SET ascii, sw VARCHAR(20) CHARACTER SET swe7,
  mt MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, lt LONGTEXT CHARACTER SET latin1,
  bin BINARY(8), vb VARBINARY(300), tb TINYBLOB, bl BLOB, mb MEDIUMBLOB, lb LONGBLOB
);
INSERT INTO texts VALUES
 (1, 'käse 😀', '😀\0\'\"\\\n\r\t\Z%_;', x'00010A0D1A22275C7F80A0E4FF', _ucs2 x'00E4263A', _utf16 x'D83DDE00', _utf32 x'0001F600', _sjis x'835C5C', _gbk x'B2E25C', _cp1251 x'CFF0E8', 'ascii', _swe7 x'5B5C5D',
  '', '', x'0001', x'', x'00', x'FF', x'27', x'5C'),
 (2, '', '', '', '', '', '', '', '', '', '', '', '', '', '', '', '', '', '', ''),
 (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (4, 'trailing  ', 'trailing  ', 'NULL', 'x', 'y', 'z', '0', '1', '2', '3', '4', 'NULL', '\\N', '        ', '  ', ' ', ' ', ' ', ' '),
 (5, 'a', REPEAT('😀', 60), REPEAT('\'', 250), 'x', 'y', 'z', '0', '1', '2', '3', '4', REPEAT('ä', 70000), REPEAT('x', 300000), REPEAT('b', 8), REPEAT('\0', 251), REPEAT('\n', 252), REPEAT(x'FF', 65535), REPEAT('"', 65536), REPEAT('\\', 2500000)),
 (6, 'a', REPEAT('y', 251), REPEAT('z', 250), 'x', 'y', 'z', '0', '1', '2', '3', '4', 'x', 'x', 'x', 'x', 'x', 'x', 'x', REPEAT('0123456789', 100000));

CREATE TABLE members (
  id INT PRIMARY KEY, e ENUM('a', '', 'B', 'ä', 'x,y', 'it''s') CHARACTER SET utf8mb4, e0 ENUM('x') NOT NULL, e1 ENUM('1', '0', '2'),
  s SET('a', 'b', '', 'ü') CHARACTER SET utf8mb4, s64 SET(
   '0','1','2','3','4','5','6','7','8','9','10','11','12','13','14','15','16','17','18','19','20','21','22','23','24','25','26','27','28','29','30','31',
   '32','33','34','35','36','37','38','39','40','41','42','43','44','45','46','47','48','49','50','51','52','53','54','55','56','57','58','59','60','61','62','63')
);
INSERT INTO members VALUES (1, 'a', 'x', '1', 'a,b', 18446744073709551615), (2, '', 'x', '0', '', 9223372036854775808), (3, 3, 'x', 1, 4, 1), (4, NULL, 'x', NULL, NULL, NULL), (5, 4, 'x', '2', 8, 0);
INSERT IGNORE INTO members VALUES (6, 'no such', 'none', 'none', 'a', '5,63'), (7, 0, 0, 0, 0, 0);

CREATE TABLE shapes (id INT PRIMARY KEY, g GEOMETRY, p POINT NOT NULL, l LINESTRING, po POLYGON, mp MULTIPOINT, gc GEOMETRYCOLLECTION, SPATIAL INDEX (p));
INSERT INTO shapes VALUES
 (1, ST_GeomFromText('POINT(1.1 -2.2)'), ST_GeomFromText('POINT(0 0)'), ST_GeomFromText('LINESTRING(0 0,1 1,2 2)'), ST_GeomFromText('POLYGON((0 0,0 3,3 3,3 0,0 0),(1 1,1 2,2 2,2 1,1 1))'), ST_GeomFromText('MULTIPOINT(1 1,2 2)'), ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))')),
 (2, NULL, ST_GeomFromText('POINT(1e-300 1e300)', 0), NULL, NULL, NULL, NULL),
 (3, ST_GeomFromText('POINT(3 4)', 4326), ST_GeomFromText('POINT(10 20)'), NULL, NULL, NULL, NULL);

CREATE TABLE documents (id INT PRIMARY KEY, j JSON);
INSERT INTO documents VALUES (1, '{"a": [1, 2.5, "ä😀\\n", null, true], "b": {"": -0.1}}'), (2, 'null'), (3, NULL), (4, '"\\u0000"'), (5, '[]');

-- Computed and invisible columns, defaults that are expressions, constraints, unusual indexes.
CREATE TABLE computed (
  id INT NOT NULL, a INT DEFAULT (1 + 2), v INT AS (a * 2) VIRTUAL, s VARCHAR(30) AS (CONCAT('<', id, '>')) STORED, hidden INT INVISIBLE DEFAULT 5,
  u CHAR(36) DEFAULT (UUID()), CONSTRAINT positive CHECK (a > 0), PRIMARY KEY (id), KEY (v), KEY down (a DESC), KEY (s), FULLTEXT (u)
) COMMENT 'it''s "quoted" \\ with ä';
INSERT INTO computed (id, a, hidden, u) VALUES (1, 5, 6, 'x'), (2, 6, NULL, NULL);

-- Keys of every kind; some tables have several thousand rows.
CREATE TABLE digits (n INT PRIMARY KEY);
INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
CREATE VIEW thousands AS SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n AS n FROM digits a, digits b, digits c, digits d;
CREATE TABLE key_composite (a INT, b VARCHAR(20) CHARACTER SET utf8mb4, c DATE, v INT, PRIMARY KEY (a, b, c));
INSERT INTO key_composite SELECT n % 7, CONCAT('Ä', n % 501), '2026-01-01' + INTERVAL n DAY, n FROM thousands;
CREATE TABLE key_down (a INT, b INT, v INT, PRIMARY KEY (a DESC, b));
INSERT INTO key_down SELECT n % 100, n, n FROM thousands;
CREATE TABLE key_text (k VARCHAR(50) CHARACTER SET utf8mb4 PRIMARY KEY, v INT);
INSERT INTO key_text SELECT LEFT(SHA2(n, 256), 32), n FROM thousands;
INSERT INTO key_text VALUES ('ä', 1), ('Ö', 2), ('ß', 3), ('😀', 4), ('', 5), ('''', 6), ('\\', 7), ('a b', 8);
CREATE TABLE key_binary (k BINARY(16) PRIMARY KEY, v INT);
INSERT INTO key_binary SELECT UNHEX(LEFT(SHA2(n, 256), 32)), n FROM thousands;
CREATE TABLE key_decimal (k DECIMAL(20,5), ts TIMESTAMP(3), v INT, PRIMARY KEY (k, ts));
INSERT INTO key_decimal SELECT n / 7 - 300, '2026-10-25 00:00:00' + INTERVAL n MINUTE, n FROM thousands;
CREATE TABLE key_sparse (k BIGINT PRIMARY KEY, v VARCHAR(100));
INSERT INTO key_sparse SELECT n * n * n * 1000003 - 9000000000000000, REPEAT('x', n % 100) FROM thousands;
CREATE TABLE key_unique (a INT NOT NULL, b VARCHAR(10), v INT, UNIQUE KEY (b), UNIQUE KEY the_one (a));
INSERT INTO key_unique SELECT n, NULL, n FROM thousands;
CREATE TABLE key_none (v VARCHAR(20), w INT);
INSERT INTO key_none SELECT CONCAT('v', n % 10), n % 3 FROM thousands;
CREATE TABLE key_prefix (t TEXT, v INT, PRIMARY KEY (t(10)));
INSERT INTO key_prefix SELECT n, n FROM thousands WHERE n < 500;
CREATE TABLE key_member (e ENUM('z', 'y', 'x'), y YEAR, f FLOAT, PRIMARY KEY (e, y, f));
INSERT INTO key_member VALUES ('z', 2000, 0.1), ('y', 1999, 0.1), ('x', 0, -0.5), ('x', 0, 1e30);
CREATE TABLE nothing (id INT PRIMARY KEY, v TEXT);
CREATE TABLE `a ``very`` odd.table/%#` (`col``umn` INT PRIMARY KEY, `select` VARCHAR(10), ` lead` INT);
INSERT INTO `a ``very`` odd.table/%#` VALUES (1, 'x', 2);
CREATE TABLE `odd ``name.with/all%#`.`schema` (id INT PRIMARY KEY);
INSERT INTO `odd ``name.with/all%#`.`schema` VALUES (1);
CREATE TABLE `odd ``name.with/all%#`.`ba``ck` (`i``d` INT PRIMARY KEY, `p``` INT, CONSTRAINT `k``k` FOREIGN KEY (`p```) REFERENCES `ba``ck` (`i``d`));
INSERT INTO `odd ``name.with/all%#`.`ba``ck` VALUES (1, NULL), (2, 1);
CREATE TABLE `größe`.`tabelle_äöü_表` (`spalte_ß` INT PRIMARY KEY, v VARCHAR(10) DEFAULT 'ä€');
INSERT INTO `größe`.`tabelle_äöü_表` VALUES (1, DEFAULT);

CREATE TABLE parent (id INT PRIMARY KEY, v INT);
CREATE TABLE child (id INT PRIMARY KEY, parent INT, CONSTRAINT fk FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE);
CREATE TABLE a_child_of_later (id INT PRIMARY KEY, later INT, FOREIGN KEY (later) REFERENCES parent (id));
INSERT INTO parent VALUES (1, 1);
INSERT INTO child VALUES (1, 1);
INSERT INTO child VALUES (2, 999);

CREATE TABLE by_range (id INT, d DATE, PRIMARY KEY (id, d)) PARTITION BY RANGE (YEAR(d)) (
  PARTITION p0 VALUES LESS THAN (2020), PARTITION p1 VALUES LESS THAN (2030), PARTITION p2 VALUES LESS THAN MAXVALUE);
INSERT INTO by_range SELECT n, '2015-01-01' + INTERVAL n DAY FROM thousands;
CREATE TABLE by_key (id INT PRIMARY KEY) PARTITION BY KEY () PARTITIONS 4;
INSERT INTO by_key SELECT n FROM thousands;

CREATE TABLE in_myisam (id INT PRIMARY KEY, v VARCHAR(20)) ENGINE = MyISAM;
INSERT INTO in_myisam SELECT n, CONCAT('m', n) FROM thousands;
CREATE TABLE in_memory (id INT PRIMARY KEY, v VARCHAR(20)) ENGINE = MEMORY;
INSERT INTO in_memory VALUES (1, 'still here');
CREATE TABLE in_archive (id INT, v BLOB) ENGINE = ARCHIVE;
INSERT INTO in_archive VALUES (2, 'x'), (1, x'00FF');
CREATE TABLE in_csv (id INT NOT NULL, v VARCHAR(20) NOT NULL) ENGINE = CSV;
INSERT INTO in_csv VALUES (1, 'a,"b"');
CREATE TABLE merged (id INT PRIMARY KEY, v VARCHAR(20)) ENGINE = MRG_MyISAM UNION = (in_myisam);
CREATE TABLE compressed_rows (id INT PRIMARY KEY, v TEXT) ROW_FORMAT = COMPRESSED KEY_BLOCK_SIZE = 8;
INSERT INTO compressed_rows VALUES (1, REPEAT('z', 10000));

-- Programs, made by clients with other settings.
CREATE VIEW a_view AS SELECT id, j FROM documents;
CREATE VIEW b_view (`one`, `t``wo`) AS SELECT id, 'ä😀' FROM a_view WHERE id > 1 WITH CASCADED CHECK OPTION;
CREATE VIEW of_alias AS SELECT x.id FROM a_view x;
CREATE ALGORITHM = TEMPTABLE SQL SECURITY INVOKER VIEW a_needs_z AS SELECT COUNT(*) AS c FROM key_none;
CREATE TABLE gone (id INT);
CREATE VIEW broken AS SELECT * FROM gone;
DROP TABLE gone;
SET NAMES latin1;
CREATE VIEW latin_view AS SELECT 'caf�' AS c, id FROM parent;
DELIMITER ;;
CREATE PROCEDURE latin_procedure (IN x VARCHAR(10)) COMMENT 'caf�' BEGIN SELECT 'caf�;;', x;
END;;
DELIMITER ;
SET NAMES utf8mb4;
SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES';
DELIMITER ;;
CREATE FUNCTION modes (a VARCHAR(20) CHARACTER SET utf8mb4) RETURNS VARCHAR(50) CHARACTER SET utf8mb4 DETERMINISTIC NO SQL
BEGIN
  /* a comment
     of two lines */
  -- it's one; that MariaDB's client takes out
  # and "another one
  RETURN "a" || '\' || 'ä😀';
END;;
CREATE PROCEDURE "odd;; procedure" (INOUT n INT, OUT m DECIMAL(10,2)) MODIFIES SQL DATA SQL SECURITY INVOKER COMMENT 'it''s a back\slash
of two lines'
BEGIN
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET n = 0;
  INSERT INTO zero_id VALUES (NULL, n);
END;;
CREATE EVENT of_modes ON SCHEDULE AT '2037-12-31 23:59:59' DISABLE COMMENT 'it''s a back\slash' DO SELECT 'back\';;
DELIMITER ;
SET SESSION sql_mode = 'ALLOW_INVALID_DATES';
DELIMITER //
CREATE TRIGGER z_runs_first BEFORE INSERT ON parent FOR EACH ROW SET NEW.v = COALESCE(NEW.v, 0) + 1//
CREATE TRIGGER a_runs_second BEFORE INSERT ON parent FOR EACH ROW FOLLOWS z_runs_first SET NEW.v = NEW.v * 2//
CREATE TRIGGER m_runs_zeroth BEFORE INSERT ON parent FOR EACH ROW PRECEDES z_runs_first SET NEW.v = COALESCE(NEW.v, 0) - 3//
CREATE TRIGGER after_delete AFTER DELETE ON parent FOR EACH ROW BEGIN INSERT INTO zero_id VALUES (NULL, OLD.id); END//
DELIMITER ;
SET SESSION time_zone = '+05:30';
CREATE EVENT recurring ON SCHEDULE EVERY 1 DAY STARTS '2030-01-01 03:00:00' ENDS '2037-01-01 00:00:00' ON COMPLETION PRESERVE DISABLE COMMENT 'nachts ☾' DO DELETE FROM zero_id;
DELIMITER //
CREATE EVENT once ON SCHEDULE AT '2037-12-31 23:59:59' ENABLE DO BEGIN SELECT 1; SELECT 2; END//
DELIMITER ;
SET SESSION time_zone = '+00:00';
-- The schema's collation was another when this was made.
ALTER DATABASE torture COLLATE latin1_german1_ci;
CREATE FUNCTION of_other_collation (a VARCHAR(10)) RETURNS INT DETERMINISTIC RETURN a = 'x';
ALTER DATABASE torture COLLATE latin1_swedish_ci;
CREATE VIEW calls_function AS SELECT modes('x') AS m;

CREATE USER 'plain'@'%' IDENTIFIED BY 'secret ''" word';
CREATE USER 'o''dd "user"'@'10.0.0.%' IDENTIFIED BY 'x' REQUIRE SSL WITH MAX_USER_CONNECTIONS 5;
CREATE USER 'locked'@'localhost' ACCOUNT LOCK;
CREATE ROLE reader, writer;
GRANT SELECT ON torture.* TO reader;
GRANT reader TO writer;
GRANT INSERT, UPDATE (v) ON torture.zero_id TO writer;
GRANT reader TO 'plain'@'%' WITH ADMIN OPTION;
GRANT EXECUTE ON FUNCTION torture.modes TO 'plain'@'%';
GRANT SELECT ON `odd ``name.with/all%#`.* TO 'o''dd "user"'@'10.0.0.%' WITH GRANT OPTION;
CREATE DEFINER = 'locked'@'localhost' VIEW owned AS SELECT id FROM parent;
